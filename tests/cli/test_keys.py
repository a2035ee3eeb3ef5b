"""`outrider keys`, and the development key of `outrider up`."""

from __future__ import annotations

import json
import shlex
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.access.api_keys import DEAD_KEPT_S, ApiKey, KeyTable, Scope
from outrider.access.keys_file import read
from outrider.cli.keys import make, moment
from outrider.cli.local import development_key
from outrider.cli.local.mesh import MeshOptions, ServedModel
from outrider.cli.local.state import RunningMesh
from outrider.errors import ConfigError, OutriderError, UnauthenticatedError
from outrider.session.types import Priority
from tests.cli.invoking import invoke

NOW = 1_700_000_000.0


class Keys:
    """The command with a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        """What it prints. Raises the error that ends it."""
        where = ("--keys-file", str(self.file), "--state-dir", str(self._folder))
        done = invoke(["keys", *arguments, *where])
        if isinstance(done.exception, OutriderError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    def made(self, *arguments: str) -> dict[str, str]:
        """What --json says of a key."""
        found: dict[str, str] = json.loads(self(*arguments, "--json"))
        return found

    @property
    def stored(self) -> tuple[ApiKey, ...]:
        return read(self.file).keys

    def is_good(self, text: str, at: float | None = None) -> bool:
        try:
            KeyTable(self.stored).find(text, time.time() if at is None else at)
        except UnauthenticatedError:
            return False
        return True


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_a_key_is_printed_once_and_kept_as_a_digest(keys: Keys) -> None:
    text = keys("create", "web").strip()
    assert keys.is_good(text) and not keys.is_good(text + "x")
    assert text not in keys.file.read_text() and text not in keys("list")
    assert stat.S_IMODE(keys.file.stat().st_mode) == 0o600
    (key,) = keys.stored
    assert (key.tenant, key.models, key.expires) == ("web", ("*",), None)
    head, row = keys("list").splitlines()
    assert head.split() == ["ID", "NAME", "TENANT", "STATE", "SCOPES", "MODELS", "UNTIL"]
    assert row.split() == [f"or_{key.id}", "web", "web", "live", "chat,models,tokenize", "*", "-"]


def test_json_is_one_object(keys: Keys) -> None:
    made = keys.made("create", "web")
    assert set(made) == {"key", "id", "name", "tenant"} and keys.is_good(made["key"])
    row = json.loads(keys("list", "--json"))
    assert row["state"] == "live" and "digest" not in row


def test_what_a_key_is_for(keys: Keys) -> None:
    keys(
        *("create", "batch", "--tenant", "acme", "--expires", "30d", "--max-priority", "low"),
        *("--models", "a", "--models", "b", "--scope", "chat", "--scope", "models"),
    )
    (key,) = keys.stored
    assert (key.tenant, key.models, key.max_priority) == ("acme", ("a", "b"), Priority.LOW)
    assert key.scopes == {Scope.CHAT, Scope.MODELS}
    assert key.expires is not None and abs(key.expires - time.time() - 30 * 86_400) < 60


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "two words"), "a key's name"),
        (("create", "x", "--scope", "root"), "unknown scope 'root'"),
        (("create", "x", "--expires", "soon"), "is not a time"),
        (("create", "x", "--expires", "2001-01-01"), "is in the past"),
        (("create", "x", "--expires", "9999-12-31"), "before the year 5000"),
        (("create", "x", "--expires", "999999w"), "before the year 5000"),
        (("create", "x", "--max-priority", "top"), "low, medium or high"),
        (("create", "x", "--tenant", "\n"), "its tenant"),
        (("revoke", "x"), "no live key"),
        (("rotate", "x"), "no live key"),
    ],
)
def test_what_is_refused(keys: Keys, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        keys(*arguments)
    assert not keys.stored


def test_a_name_is_one_live_keys(keys: Keys) -> None:
    keys("create", "web")
    with pytest.raises(ConfigError, match="is there; replace it"):
        keys("create", "web")
    keys("revoke", "web")
    keys("create", "web")
    assert len(keys.stored) == 2 and len(keys("list").splitlines()) == 2
    assert len(keys("list", "--all").splitlines()) == 3


def test_keys_that_are_long_dead_make_room(keys: Keys) -> None:
    keys("create", "live")
    keys("create", "ended", "--expires", "1d")
    keys("create", "ended-lately", "--expires", "1d")
    rows = json.loads(keys.file.read_text())
    now = time.time()
    rows["keys"][1]["expires"] = now - DEAD_KEPT_S - 10
    rows["keys"][2]["revoked"] = now - DEAD_KEPT_S + 1000
    keys.file.write_text(json.dumps(rows))
    keys("create", "another")
    assert [key.name for key in keys.stored] == ["live", "ended-lately", "another"]


@pytest.mark.parametrize("by", ["id", "prefix", "name"])
def test_revoking(keys: Keys, by: str) -> None:
    made, other = keys.made("create", "web"), keys.made("create", "other")
    keys("revoke", {"id": made["id"], "prefix": f"or_{made['id']}", "name": "web"}[by])
    assert not keys.is_good(made["key"]) and keys.is_good(other["key"])
    with pytest.raises(ConfigError, match="no live key"):
        keys("revoke", made["id"])


def test_rotating_at_once(keys: Keys) -> None:
    old = keys.made("create", "web", "--scope", "models", "--tenant", "acme", "--expires", "1d")
    new = keys.made("rotate", "web")
    assert keys.is_good(new["key"]) and not keys.is_good(old["key"])
    before, after = keys.stored
    assert (after.scopes, after.tenant, after.expires) == (
        before.scopes,
        before.tenant,
        before.expires,
    )


def test_rotating_with_time_to_change(keys: Keys) -> None:
    old = keys.made("create", "web")
    new = keys.made("rotate", "web", "--keep", "12h")
    for hours, is_old_good in ((0, True), (11.9, True), (12.1, False)):
        at = time.time() + hours * 3600
        assert keys.is_good(old["key"], at) == is_old_good and keys.is_good(new["key"], at)
    with pytest.raises(ConfigError, match="several keys have the name web"):
        keys("rotate", "web")
    assert keys.is_good(keys.made("rotate", new["id"])["key"])


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90m", NOW + 5400),
        ("12h", NOW + 43_200),
        ("4w", NOW + 4 * 7 * 86_400),
        ("2027-01-31", 1_801_353_600.0),
        ("2027-01-31T12:00+02:00", 1_801_389_600.0),
    ],
)
def test_times(text: str, at: float) -> None:
    assert moment(text, NOW) == at


def test_keys_differ() -> None:
    made = [make("x", NOW) for _ in range(100)]
    assert len({it.text for it in made}) == len({it.key.id for it in made}) == 100


# `outrider up`


def mesh_at(**row: Any) -> RunningMesh:
    return RunningMesh(1, "127.0.0.1", [{"name": "edge", **row}], [{"name": "m", "embeds": False}])


def test_a_development_key_is_made_once_and_anew_when_it_is_not_good(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    text, is_new = development_key.ensure(tmp_path)
    assert is_new and keys.is_good(text)
    assert development_key.ensure(tmp_path) == (text, False)
    assert stat.S_IMODE((tmp_path / "development.key").stat().st_mode) == 0o600
    keys("revoke", "development")
    again, is_new = development_key.ensure(tmp_path)
    assert is_new and again != text and keys.is_good(again)
    assert development_key.read(tmp_path) == again
    keys.file.unlink()
    assert development_key.ensure(tmp_path)[1]
    (tmp_path / "development.key").unlink()
    assert development_key.read(tmp_path) == ""


def test_a_key_is_shown_once(tmp_path: Path) -> None:
    text, _ = development_key.ensure(tmp_path)
    first = development_key.welcome(mesh_at(http_port=8080), tmp_path, text, is_new=True)
    assert text in first[0] and text in first[1] and "http://127.0.0.1:8080/v1/" in first[1]
    later = development_key.welcome(mesh_at(http_port=8080), tmp_path, text, is_new=False)
    assert text not in "".join(later) and "$(cat " in later[1]
    assert len(development_key.welcome(mesh_at(), tmp_path, text, is_new=True)) == 1


def test_a_line_for_curl_is_one_for_a_shell() -> None:
    line = development_key.curl_line("http://127.0.0.1:8080", "or_x", "m")
    program, url, *rest = shlex.split(line)
    assert (program, url) == ("curl", "http://127.0.0.1:8080/v1/chat/completions")
    assert "Authorization: Bearer or_x" in rest and "Content-Type: application/json" in rest
    body = json.loads(rest[-1])
    assert body["model"] == "m" and body["messages"][0]["role"] == "user"
    embeds = shlex.split(development_key.curl_line("http://h:1", "or_x", "m", embeds=True))
    assert embeds[1] == "http://h:1/v1/embeddings" and "input" in json.loads(embeds[-1])


@pytest.mark.parametrize(
    ("told", "is_own"),
    [
        ({}, False),
        ({"settings": ("edge.access.keys-file=/k",)}, True),
        ({"settings": ("edge.access.http_anonymous=yes",)}, False),
        ({"tables": {"edge": {"access": {"keys_file": "/k"}}}}, True),
    ],
)
def test_who_names_a_file_makes_its_keys(told: dict[str, Any], is_own: bool) -> None:
    options = MeshOptions((ServedModel("m"),), **told)
    assert development_key.has_own_file(options) == is_own


def test_keys_go_where_the_mesh_finds_them(tmp_path: Path) -> None:
    def create(name: str) -> None:
        done = invoke(["keys", "create", name, "--state-dir", str(tmp_path)])
        assert done.exit_code == 0, done.output

    create("one")
    assert [key.name for key in read(tmp_path / "keys.json").keys] == ["one"]
    (tmp_path / "config").mkdir()
    own = tmp_path / "own.json"
    (tmp_path / "config" / "edge.toml").write_text(f'[edge]\n[edge.access]\nkeys_file = "{own}"\n')
    create("two")
    assert [key.name for key in read(own).keys] == ["two"]
