"""GET /v1/mesh: who may watch, how many, and how often the router is asked for all of them. Real
HTTP and a real RouterService."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from httpx2 import AsyncClient, Response

from outrider.access.api_keys import Scope
from outrider.errors import PermissionDeniedError, UnavailableError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import inference_pb2, router_pb2
from services.edge.http.config import HttpConfig
from tests.api_keys import key_of, text_of, write_keys
from tests.edge.integration.http_client import CHAT, plain, serving_http
from tests.edge.integration.running import Running

WATCHER, OTHER = text_of("watcher"), text_of("other")
KEYS = (
    key_of("acme"),
    key_of("watcher", "acme", scopes=frozenset({Scope.MESH})),
    key_of("other", "bolt", scopes=frozenset({Scope.MESH})),
)
STREAM = {"accept": "text/event-stream"}
DESCRIBED = router_pb2.DescribeMeshResponse(
    region="us",
    models=router_pb2.ListModelsResponse(
        default_model="small",
        models=[
            router_pb2.ModelFleet(
                model="small",
                waiting_sessions=3,
                regions=[router_pb2.RegionFleet(region="us", replicas=2, ready_replicas=1)],
            )
        ],
    ),
    replicas=router_pb2.ListReplicasResponse(
        replicas=[
            router_pb2.Replica(
                name="us-0",
                region="us",
                model="small",
                state=router_pb2.REPLICA_STATE_READY,
                queued_sessions=2,
                kv_blocks_total=100,
                kv_blocks_free=40,
                static_prefixes=[inference_pb2.StaticPrefix(name="p", tokens=9)],
                engine="openvino",
                guarantees=["exact", "drafts"],
            )
        ],
        moves=[router_pb2.Move(left="us-1", replica="us-0", reason="REPLICA_LOST", pause_ms=480.0)],
    ),
)


def serving(words: Vocabulary, folder: Path, **config: Any) -> Any:
    http = HttpConfig(port=0, **config)
    return serving_http(words, folder, keys=KEYS, http=http, name="here", region="eu")


@asynccontextmanager
async def watching(client: AsyncClient) -> AsyncIterator[tuple[Response, AsyncIterator[Any]]]:
    """An event stream: its answer, and its events by name with their data."""
    async with client.stream("GET", "/v1/mesh", headers=STREAM) as answer:
        yield answer, _events(answer)


async def _events(answer: Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            name = ""


async def test_it_says_what_the_router_says_and_how_far_it_is(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path) as mesh, plain(mesh, WATCHER) as client:
        mesh.region.described = DESCRIBED
        answer = await client.get("/v1/mesh")
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
        told = answer.json()
        assert (told["edge"]["name"], told["edge"]["region"]) == ("here", "eu")
        (router,) = told["edge"]["routers"]
        assert (router["state"], router["region"]) == ("READY", "test-region")
        assert [it["waiting_sessions"] for it in told["models"]] == [3]
        (replica,) = told["replicas"]
        assert (replica["name"], replica["state"], replica["queued_sessions"]) == (
            "us-0",
            "READY",
            2,
        )
        assert "address" not in replica
        assert replica["static_prefixes"] == [{"name": "p", "tokens": 9}]
        (move,) = told["moves"]
        assert (move["left"], move["replica"], move["pause_ms"]) == ("us-1", "us-0", 480.0)


async def test_a_key_is_for_the_mesh_only_if_it_says_so(words: Vocabulary, tmp_path: Path) -> None:
    async with serving(words, tmp_path) as mesh:
        for key, status in (("", 403), (text_of("acme"), 403), (text_of("nobody's"), 401)):
            async with plain(mesh, key) as client:
                for headers in ({}, STREAM):
                    answer = await client.get("/v1/mesh", headers=headers)
                    assert answer.status_code == status, (key, answer.text)
        assert mesh.region.num_described == 0
        async with plain(mesh, WATCHER) as client:
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 403


async def test_the_router_is_asked_once_for_all_who_watch(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path) as mesh, AsyncExitStack() as until_seen:
        mesh.region.gate.clear()
        clients = [await until_seen.enter_async_context(plain(mesh, WATCHER)) for _ in range(6)]
        asking = [asyncio.create_task(it.get("/v1/mesh")) for it in clients]
        await eventually(lambda: mesh.region.num_described == 1)
        mesh.region.gate.set()
        answers = await asyncio.gather(*asking)
        assert len({it.json()["at"] for it in answers}) <= 2 >= mesh.region.num_described
        async with watching(clients[0]) as (_, one), watching(clients[1]) as (_, two):
            before = mesh.region.num_described
            seen: list[set[float]] = [set(), set()]
            for _ in range(3):
                for events, at in zip((one, two), seen, strict=True):
                    at.add((await anext(events))[1]["at"])
            assert len(seen[0] | seen[1]) <= mesh.region.num_described - before + 1
        await eventually(lambda: watchers(mesh) == 0)


async def test_so_many_may_watch_and_no_tenant_takes_all_places(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path, max_mesh_watchers=4) as mesh, AsyncExitStack() as left:
        mine = [await left.enter_async_context(plain(mesh, WATCHER)) for _ in range(3)]
        for client in mine[:2]:
            answer, _ = await left.enter_async_context(watching(client))
            assert answer.status_code == 200
        async with watching(mine[2]) as (answer, _):
            assert answer.status_code == 429, "half of all places"
            body = json.loads(await answer.aread())
            assert "max_mesh_watchers" in body["error"]["message"]
            assert answer.headers["retry-after"]
        others = [await left.enter_async_context(plain(mesh, OTHER)) for _ in range(2)]
        for client in others:
            answer, _ = await left.enter_async_context(watching(client))
            assert answer.status_code == 200, "those of others are free"
        assert watchers(mesh) == 4
        assert (await mine[2].get("/v1/mesh")).status_code == 200, "a look takes no place"


async def test_who_is_gone_leaves_a_place(words: Vocabulary, tmp_path: Path) -> None:
    async with serving(words, tmp_path, max_mesh_watchers=1) as mesh:
        for _ in range(3):
            async with plain(mesh, WATCHER) as client, watching(client) as (answer, events):
                assert answer.status_code == 200
                await anext(events)
            await eventually(lambda: watchers(mesh) == 0)


async def test_a_router_that_fails_is_an_event_and_the_stream_goes_on(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path) as mesh, plain(mesh, WATCHER) as client:
        mesh.region.error = PermissionDeniedError("set router.mesh_page")
        refused = await client.get("/v1/mesh", headers=STREAM)
        assert refused.status_code == 403 and "router.mesh_page" in refused.text
        mesh.region.error = None
        async with watching(client) as (_, events):
            assert (await anext(events))[0] == ""
            mesh.region.error = UnavailableError("busy")
            await until(events, "error")
            mesh.region.error = None
            await until(events, "")


async def test_a_key_that_is_withdrawn_ends_the_stream(words: Vocabulary, tmp_path: Path) -> None:
    async with serving(words, tmp_path) as mesh, plain(mesh, WATCHER) as client:
        async with watching(client) as (_, events):
            await anext(events)
            write_keys(tmp_path / "keys.json", key_of("acme"))
            told = [name async for name, _ in events]
            assert told[-1] == "error"
        assert (await client.get("/v1/mesh")).status_code == 401


async def until(events: AsyncIterator[tuple[str, Any]], wanted: str) -> None:
    """Read up to an event of this name."""
    async with asyncio.timeout(60):
        async for name, _ in events:
            if name == wanted:
                return
    raise AssertionError("the stream ended")


def watchers(mesh: Running) -> int:
    return mesh.http.frontend.mesh.num_watchers


async def test_the_list_of_models_says_what_computes_and_not_where(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path) as mesh, plain(mesh, text_of("acme")) as client:
        mesh.region.described = DESCRIBED
        listed = await client.get("/v1/models")
        (model,) = listed.json()["data"]
        assert model["engines"] == [{"engine": "openvino", "guarantees": ["exact", "drafts"]}]
        assert "us-0" not in listed.text
        one = (await client.get(f"/v1/models/{model['id']}")).json()
        assert one["engines"] == model["engines"]


async def test_without_a_router_that_tells_the_list_of_models_does_without(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving(words, tmp_path) as mesh, plain(mesh, text_of("acme")) as client:
        mesh.region.error = PermissionDeniedError("set router.mesh_page")
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert "engines" not in model
