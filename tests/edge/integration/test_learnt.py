"""What chats taught an edge, and what of it is there after its restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.client import Message
from outrider.models.vocabulary import Vocabulary
from outrider.speculation.learnt import LearntConfig
from services.edge.access.identity import TenantConfig
from services.edge.models.kept_learning import KeptLearning
from tests.api_keys import key_of, text_of
from tests.edge.integration.running import Running, running
from tests.edge.integration.trouble import said

TENANTS = (
    TenantConfig("acme"),
    TenantConfig("each", trust="connection"),
)
KEYS = (key_of("acme"), key_of("each"))
KEY = "a secret of the edges"
REPLY = "Once upon a time there was a small mesh, and nobody knew its name."


async def chats(mesh: Running, key: str, count: int = 4) -> list[bool]:
    """Whether the region was told each time that the group's name lasts."""
    told = []
    async with mesh.client(key=key, client_secret=b"s" * 16) as client:
        for number in range(count):
            await said(client.chat([Message("user", f"question {number}")]))
            told.append(mesh.region.opened[-1].group_lasts)
    await mesh.settled()
    return told


def written(folder: Path) -> list[Path]:
    return list(folder.rglob("*.learnt"))


def learning(mesh: Running) -> KeptLearning:
    model = mesh.edge.models.first
    assert model is not None
    return model.learning


def kept(mesh: Running) -> int:
    return learning(mesh).num_kept


async def test_what_a_tenants_chats_taught_is_there_after_a_restart(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    options = {"tenants": TENANTS, "keys": KEYS, "cache_salt_key": KEY}
    async with running(vocabulary, tmp_path, REPLY, **options) as mesh:
        assert all(await chats(mesh, text_of("acme")))
        assert not any(await chats(mesh, text_of("each"))), "nobody but one connection"
        assert not any(await chats(mesh, ""))
        salt = mesh.region.opened[0].cache_salt
        before = learning(mesh).groups.averages(salt).numbers()
        assert kept(mesh) == 0
        await mesh.restart(in_order=True)
        assert kept(mesh) == 1
        after = learning(mesh).groups.averages(salt).numbers()
        for name, row in before.items():
            assert after[name] == pytest.approx(row, rel=1e-4)
        tables = learning(mesh).groups._ngrams.of(salt).learnt().tables
        assert any(tables), "what often follows in the replies"
    (file,) = written(tmp_path)
    assert file.is_relative_to(tmp_path / "learnt") and salt.hex() not in file.name


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_salt_key": KEY, "learnt": LearntConfig(keep=False)}],
    ids=["names do not last", "switched off"],
)
async def test_nothing_is_kept_where_it_should_not_be(
    vocabulary: Vocabulary, tmp_path: Path, options: dict[str, object]
) -> None:
    async with running(vocabulary, tmp_path, REPLY, tenants=TENANTS, keys=KEYS, **options) as mesh:
        told = await chats(mesh, text_of("acme"))
        assert all(told) == ("cache_salt_key" in options)
        await mesh.restart(in_order=True)
        assert kept(mesh) == 0
    assert not written(tmp_path)
