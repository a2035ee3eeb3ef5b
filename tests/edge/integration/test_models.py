"""Several models at one edge: loaded when they are asked for, unloaded when others need the room,
added, removed and redefined while chats run, and each for those who may use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Client, Message, ModelInfo
from outrider.client.chat import Chat
from outrider.config_following import ConfigSource, following
from outrider.errors import (
    ArtifactMissingError,
    DuplicateSessionError,
    InvalidSamplingError,
    KeyReusedError,
    OutriderError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
)
from outrider.load_table import LoadLimits
from outrider.models.definitions import ModelSpec
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually, leak_check
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import select_backend
from services.edge.access.identity import TenantConfig
from services.edge.app import LIVE_KEYS
from services.edge.config import EdgeConfig
from tests.api_keys import key_of, text_of
from tests.edge.integration.region import Region, small_vocabulary
from tests.edge.integration.running import REPLY, Running, running, settings_of
from tests.edge.integration.trouble import ASK, cut, said
from tests.mesh import EdgeUnderTest, catalog_of, edge_config
from tests.typed_text import type_until

REPLIES = {"a": REPLY, "b": "the second model says this", "c": "and the third one that"}
AT_ONCE = LoadLimits(min_loaded_s=0.0, retry_s=0.0)
TENANTS = (TenantConfig("acme", models=("b",)),)
KEYS = (key_of("acme"),)


class Loader:
    """Vocabularies by model, what was loaded, and how a load is held up or fails."""

    def __init__(self) -> None:
        self.vocabularies = {
            name: small_vocabulary(40 * number) for number, name in enumerate(REPLIES)
        }
        self.loads: list[str] = []
        self.gates = {name: threading.Event() for name in REPLIES}
        for gate in self.gates.values():
            gate.set()
        self.errors: dict[str, OutriderError] = {}

    def __call__(self, spec: ModelSpec) -> tuple[Vocabulary, FallbackBackend]:
        self.loads.append(spec.name)
        assert self.gates[spec.name].wait(60)
        if (error := self.errors.get(spec.name)) is not None:
            raise error
        vocabulary = self.vocabularies[spec.name]
        return vocabulary, select_backend(vocabulary, REFERENCE)


@asynccontextmanager
async def serving(
    loader: Loader, state_dir: Path, models: str = "ab", **config: Any
) -> AsyncIterator[Running]:
    """An edge with models of these one-letter names, before a region that has all there are."""
    config = {"loading": AT_ONCE, "catalog": catalog_of(*REPLIES)} | config
    vocabularies = loader.vocabularies
    async with running(
        vocabularies["a"], state_dir, REPLIES["a"], models=tuple(models), load=loader, **config
    ) as mesh:
        for name in "bc":
            mesh.region.others[name] = Region(vocabularies[name], REPLIES[name])
        try:
            yield mesh
        finally:
            for gate in loader.gates.values():
                gate.set()


@pytest.fixture
def loader() -> Loader:
    """Of the edge under test."""
    return Loader()


@pytest.fixture
async def mesh(
    request: pytest.FixtureRequest, loader: Loader, tmp_path: Path
) -> AsyncIterator[Running]:
    """The edge, with the settings of `serving` that the marker `edge` tells."""
    async with serving(loader, tmp_path, **settings_of(request)) as mesh:
        yield mesh
        await settled(mesh)


def regions(mesh: Running) -> list[Region]:
    return [mesh.region, *mesh.region.others.values()]


async def settled(mesh: Running) -> None:
    await mesh.settled()
    assert not any(region.live for region in regions(mesh))


async def text(client: Client, model: str = "", **options: Any) -> str:
    return await said(client.chat(ASK, model=model, **options))


async def held(mesh: Running, client: Client, model: str) -> tuple[Chat, asyncio.Task[Any]]:
    """A chat in the middle of its reply, until the region's gate is opened."""
    region = mesh.region.others.get(model, mesh.region)
    region.hold_at = 6
    region.gate.clear()
    chat = client.chat(ASK, model=model)
    task = asyncio.create_task(result(chat))
    await eventually(lambda: any(session.committed >= 6 for session in region.live.values()))
    return chat, task


async def result(chat: Chat) -> str:
    async with chat:
        return (await chat.result()).text


def names(mesh: Running) -> set[str]:
    """Of the models that are loaded."""
    return {key.name for key in mesh.edge.models._loaded}


def drafter_is_off(mesh: Running, model: str) -> float | None:
    """The gauge; None: there is none."""
    labels = {"model": model, "state": "off"}
    return mesh.metrics.registry.get_sample_value("outrider_edge_drafter_state", labels)


async def test_each_model_has_a_vocabulary_of_its_own(
    loader: Loader, mesh: Running, client: Client
) -> None:
    a, b = (loader.vocabularies[name].digest for name in "ab")
    assert a != b
    assert loader.loads == ["a"], "before the edge is ready"
    models = (await client.describe()).models
    assert models == (ModelInfo("a", a, 8192), ModelInfo("b", b"", 8192))
    assert [await text(client, name) for name in ("b", "a", "")] == [
        *(REPLIES["b"], REPLIES["a"], REPLIES["a"])
    ]
    assert loader.loads == ["a", "b"]
    assert (await client.describe()).models[1] == ModelInfo("b", b, 8192)
    opened = mesh.region.others["b"].opened
    assert [opening.vocabulary_digest for opening in opened] == [b]
    with pytest.raises(UnknownModelError, match="'c' here; there is a, b"):
        await text(client, "c")
    with pytest.raises(InvalidSamplingError, match="outside the vocabulary"):
        await text(client, "b", sampling=SamplingParams(stop_ids=(9999,)))
    assert mesh.of_model("outrider_edge_chats_total", "b", outcome="OK") == 1
    assert mesh.of_model("outrider_edge_chats_total", "a", outcome="OK") == 2
    assert mesh.sample("outrider_edge_loaded_models") == 2


@pytest.mark.edge(models="abc", max_loaded_models=2)
async def test_a_model_gives_way_and_is_loaded_again(
    loader: Loader, mesh: Running, client: Client
) -> None:
    for name in ("b", "c", "b", "a"):
        assert await text(client, name) == REPLIES[name]
    assert loader.loads == ["a", "b", "c", "a"]
    await eventually(lambda: names(mesh) == {"a", "b"})
    assert mesh.of_model("outrider_edge_model_evictions_total", "a") == 1
    assert mesh.of_model("outrider_edge_model_evictions_total", "c") == 1
    assert mesh.of_model("outrider_edge_model_loads_total", "a") == 2
    assert [drafter_is_off(mesh, name) for name in "abc"] == [1, 1, None], "c has no drafter"


@pytest.mark.edge(max_loaded_models=1)
async def test_a_model_with_a_chat_does_not_give_way(
    loader: Loader, mesh: Running, client: Client
) -> None:
    _, first = await held(mesh, client, "a")
    second = asyncio.create_task(text(client, "b"))
    await eventually(lambda: mesh.edge.models.num_waiting == 1)
    assert (await client.describe()).name == "edge"
    assert loader.loads == ["a"] and not second.done()
    mesh.region.gate.set()
    assert [await first, await second] == [REPLIES["a"], REPLIES["b"]]


async def test_many_chats_for_one_model_cause_one_load(
    loader: Loader, mesh: Running, client: Client
) -> None:
    loader.gates["b"].clear()
    chats = [asyncio.create_task(text(client, "b", idempotency_key=key)) for key in "0123456"]
    again = asyncio.create_task(text(client, "b", idempotency_key="0"))
    await eventually(lambda: mesh.edge.models.num_waiting == 8)
    assert mesh.sample("outrider_edge_waiting_chats") == 8
    assert mesh.sample("outrider_edge_open_chats") == 8
    assert await text(client, "a") == REPLIES["a"], "nobody else waits"
    loader.gates["b"].set()
    told = await asyncio.gather(*chats, again, return_exceptions=True)
    texts = [it for it in told if isinstance(it, str)]
    assert texts == [REPLIES["b"]] * 7
    (taken_over,) = (it for it in told if not isinstance(it, str))
    assert isinstance(taken_over, DuplicateSessionError), "its reply went to the other stream"
    assert loader.loads == ["a", "b"]
    assert len(mesh.region.others["b"].opened) == 7, "a request that comes twice runs once"


@pytest.mark.edge(loading=replace(AT_ONCE, max_waiting=3), max_chats_per_client=2)
async def test_waiting_chats_are_cancelled_count_and_time_out(
    loader: Loader, mesh: Running, client: Client
) -> None:
    loader.gates["b"].clear()
    async with mesh.client() as other:
        chat = client.chat(ASK, model="b")
        async with chat:
            async with client.chat(ASK, model="b"):
                await eventually(lambda: mesh.edge.models.num_waiting == 2)
                with pytest.raises(OverloadedError, match="chats under way"):
                    await text(client, "a")
            await eventually(lambda: mesh.edge.models.num_waiting == 1)
            chat.cancel()
            assert (await chat.result()).finish_reason == "cancelled"
        await eventually(lambda: mesh.edge.models.num_waiting == 0)
        assert await text(client, "a") == REPLIES["a"]
        async with client.chat(ASK, model="b", deadline_ms=50) as late:
            with pytest.raises(OutriderError, match="deadline passed"):
                await late.result()
        async with (
            client.chat(ASK, model="b"),
            client.chat(ASK, model="b"),
            other.chat(ASK, model="b"),
        ):
            await eventually(lambda: mesh.edge.models.num_waiting == 3)
            with pytest.raises(OverloadedError, match="chats already wait for models"):
                await text(other, "b")
        await eventually(lambda: mesh.edge.models.num_waiting == 0)
        assert mesh.of_model("outrider_edge_chats_total", "b", outcome="CANCELLED") >= 4
        loader.gates["b"].set()
        await eventually(lambda: "b" in names(mesh))
        assert not mesh.region.others["b"].opened


async def test_an_edge_that_stops_ends_the_wait(loader: Loader, mesh: Running) -> None:
    loader.gates["b"].clear()
    async with mesh.client(reconnect=None) as client:
        async with client.chat(ASK, model="b") as chat:
            await eventually(lambda: mesh.edge.models.num_waiting == 1)
            stopping = asyncio.create_task(mesh.edge.stop())
            with pytest.raises(UnavailableError, match="shutting down"):
                await chat.result()
            loader.gates["b"].set()
            await stopping


async def test_a_failed_load_is_told_and_tried_again(
    loader: Loader, mesh: Running, client: Client
) -> None:
    loader.errors["b"] = ArtifactMissingError("/secret/place/b.gguf is not there")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the model b cannot be loaded") as refused:
            await text(client, "b")
        assert "secret" not in refused.value.message
    assert mesh.of_model("outrider_edge_failed_model_loads_total", "b") == 2
    assert mesh.edge.models._start_error is None, "its traceback holds what was loaded"
    del loader.errors["b"]
    assert await text(client, "b") == REPLIES["b"]
    assert loader.loads == ["a", "b", "b", "b"]


async def test_an_edge_without_its_first_model_does_not_start(tmp_path: Path) -> None:
    loader = Loader()
    loader.errors["a"] = ArtifactMissingError("a is not there")
    with pytest.raises(ArtifactMissingError):
        async with serving(loader, tmp_path):
            raise AssertionError("it started")


async def test_a_start_that_is_given_up_ends_with_its_load(tmp_path: Path) -> None:
    loader = Loader()
    loader.gates["a"].clear()
    async with leak_check():
        edge = EdgeUnderTest(edge_config(tmp_path, ["127.0.0.1:1"], models=("a",)), loader)
        starting = asyncio.create_task(edge.start())
        await eventually(lambda: loader.loads == ["a"])
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        stopping = asyncio.create_task(edge.stop())
        loader.gates["a"].set()
        await stopping


async def test_a_model_is_removed_while_a_chat_runs(mesh: Running, client: Client) -> None:
    _, running_chat = await held(mesh, client, "b")
    mesh.edge.set_models(replace(mesh.edge._config, models=("a",)), catalog_of(*REPLIES))
    with pytest.raises(UnknownModelError, match=r"there is a$"):
        await text(client, "b")
    assert [model.name for model in (await client.describe()).models] == ["a"]
    assert names(mesh) == {"a", "b"}
    cut(client)
    mesh.region.others["b"].gate.set()
    assert await running_chat == REPLIES["b"], "it came back to its own model"
    # The reply that is kept for clients that come back needs no model.
    await eventually(lambda: names(mesh) == {"a"})


@pytest.mark.edge(models="a")
async def test_a_model_is_added_and_becomes_the_default(mesh: Running, client: Client) -> None:
    chat, running_chat = await held(mesh, client, "")
    mesh.edge.set_models(replace(mesh.edge._config, models=("c", "a")), catalog_of(*REPLIES))
    cut(client)
    mesh.region.gate.set()
    assert await running_chat == REPLIES["a"], "a chat goes on with its own model"
    assert await text(client) == REPLIES["c"]
    assert await said(client.resume(chat.resume_token)) == REPLIES["a"]
    with pytest.raises(KeyReusedError):
        for model in ("a", "c"):
            await text(client, model, idempotency_key="k")


@pytest.mark.edge(models="ab")
async def test_a_definition_that_changed_is_for_new_chats(
    loader: Loader, mesh: Running, client: Client
) -> None:
    _, running_chat = await held(mesh, client, "b")
    old = loader.vocabularies["b"]
    loader.vocabularies["b"] = new = small_vocabulary(200)
    changed = [replace(it, source=it.source + "2") for it in catalog_of("b")]
    first = mesh.region.others["b"]
    mesh.region.others["b"] = Region(new, REPLIES["b"])
    mesh.edge.set_models(mesh.edge._config, catalog_of(*REPLIES).extended(changed))
    assert await text(client, "b") == REPLIES["b"]
    assert mesh.region.others["b"].opened[0].vocabulary_digest == new.digest != old.digest
    assert loader.loads == ["a", "b", "b"]
    assert len(mesh.edge.models._loaded) == 3
    first.gate.set()
    assert await running_chat == REPLIES["b"]
    await eventually(lambda: len(mesh.edge.models._loaded) == 2)
    assert drafter_is_off(mesh, "b") == 1, "of the new definition"
    models = (await client.describe()).models
    assert models[1].vocabulary_digest == new.digest


@pytest.mark.edge(models="abc", tenants=TENANTS, keys=KEYS, anonymous_models=("a", "c"))
async def test_models_are_for_those_who_may_use_them(mesh: Running) -> None:
    async with mesh.client() as anybody, mesh.client(key=text_of("acme")) as acme:
        assert await text(acme) == REPLIES["b"], "the first that it may use"
        assert await text(anybody) == REPLIES["a"]
        for client, served in ((acme, "b"), (anybody, "a, c")):
            told = set()
            for model in ("gpt-9", "c" if client is acme else "b"):
                with pytest.raises(UnknownModelError) as refused:
                    await text(client, model)
                told.add(refused.value.message.replace(repr(model), "?"))
            assert told == {f"there is no model ? here; there is {served}"}
            assert [it.name for it in (await client.describe()).models] == ["a", "c"]
        allowed = replace(TENANTS[0], models=("c",))
        config = replace(mesh.edge._config, tenants=(allowed,), anonymous_models=("*",))
        mesh.edge.set_models(config, catalog_of(*REPLIES))
        assert await text(acme) == REPLIES["c"]
        assert await text(anybody, "b") == REPLIES["b"]
        assert len((await anybody.describe()).models) == 3
        closed = replace(config, tenants=(replace(allowed, models=()),), anonymous_models=())
        mesh.edge.set_models(closed, catalog_of(*REPLIES))
        for client in (acme, anybody):
            with pytest.raises(UnknownModelError, match="may use none of the models here"):
                await text(client)
        assert (await anybody.describe()).models == ()


async def test_what_is_typed_is_for_a_model_that_is_loaded(
    loader: Loader, mesh: Running, client: Client
) -> None:
    typed = "Which of these trains leaves first, and which of them is the fastest?"
    region = mesh.region.others["b"]
    early = client.typing(model="b")
    early.update(typed[:-8])
    early.update(typed)
    assert await text(client, "a") == REPLIES["a"]
    assert loader.loads == ["a"], "nothing is loaded for what may never be sent"
    assert await text(client, "b") == REPLIES["b"]
    await type_until(lambda: len(region.opened) > 1, client.typing(model="b"), typed)
    assert region.opened[1].model == "b" and region.opened[1].sampling.max_tokens == 1
    assert mesh.of_model("outrider_edge_prefilled_tokens_total", "b") > 0
    assert await said(client.chat([Message("user", typed)], model="b")) == REPLIES["b"]


async def test_what_is_learned_stays_with_its_model(mesh: Running, client: Client) -> None:
    for name in "ab":
        assert await text(client, name) == REPLIES[name]
    (a, b) = mesh.edge.models._loaded.values()
    assert a.encoder is not b.encoder and a.encoder.size[0] > 0
    assert b.encoder.size == a.encoder.size, "the text was encoded anew for the other model"
    assert a.tools.averages(b"group") is a.tools.averages(b"group")
    assert a.tools.averages(b"group") is not b.tools.averages(b"group")
    assert a.drafter is not b.drafter
    texts = "outrider_tokenization_cache_texts_total"
    before = mesh.sample(texts, content="user")
    assert before > 0
    mesh.edge.set_models(replace(mesh.edge._config, models=("a",)), catalog_of(*REPLIES))
    await eventually(lambda: names(mesh) == {"a"})
    assert mesh.sample(texts, content="user") == before, "counters never fall"


async def test_the_configuration_file_is_followed(tmp_path: Path) -> None:
    loader, file = Loader(), tmp_path / "outrider.toml"
    definitions = "".join(f'[models.{name}]\nsource = "file:/{name}.gguf"\n' for name in "abc")
    tenant = '[[edge.tenants]]\nname = "acme"\n'

    def write(models: str, own: str, more: str = "") -> None:
        tenants = f"{tenant}models = {own}\n"
        file.write_text(f"[edge]\nmodels = {models}\n{more}{tenants}{definitions}")

    write('["a"]', '["a"]')
    source = ConfigSource(EdgeConfig, "edge", file, environ={"OUTRIDER_MODELS": "/dev/null"})
    config, catalog = source.read()
    settings = {"catalog": catalog, "tenants": config.tenants, "keys": KEYS}
    async with serving(loader, tmp_path, "a", **settings) as mesh:
        async with (
            following(
                source, config, catalog, live_keys=LIVE_KEYS, apply=mesh.edge.apply, poll_s=0.02
            ),
            mesh.client() as client,
            mesh.client(key=text_of("acme")) as acme,
        ):
            write('["a", "b"]', '["b"]', "drain_s = 1.0\n")
            await eventually(lambda: set(mesh.edge.models.names) == {"a", "b"})
            assert await text(client, "b") == REPLIES["b"]
            assert await text(acme) == REPLIES["b"]
            write('["a", "gpt-9"]', '["a"]')  # which is defined nowhere
            source.read_at_once()
            definitions = definitions.replace("/b.gguf", "/elsewhere.gguf")
            write('["a", "b"]', '["a", "b"]')
            await eventually(
                lambda: mesh.edge.models._models["b"].spec.source.endswith("where.gguf")
            )
            assert await text(client, "b") == REPLIES["b"]
            assert loader.loads == ["a", "b", "b"]
            assert await text(acme) == REPLIES["a"]
        await settled(mesh)
