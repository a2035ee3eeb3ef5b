"""Who may call what, at every door: every route and method over HTTP/1.1, HTTP/2 and HTTP/3, and
every kind of first frame of the native protocol, with every kind of credential. The tables of
access_matrix.py have to name every route and every kind of frame that there is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from outrider.access.api_keys import Scope
from outrider.client.streams import Connection
from outrider.codec.frames import encode_frame
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from outrider.wire import error_from_proto
from services.edge.http.anthropic_errors import AnthropicErrorBody
from services.edge.http.openai_errors import OpenAiErrorBody
from services.edge.http.routes import ALL_ROUTES, Access, Route
from tests.api_keys import text_of
from tests.edge.integration.access_matrix import (
    DOORS,
    FEW,
    FIRST_FRAMES,
    GOOD,
    GRANTED,
    MODEL,
    REFUSED,
    Answer,
    Ask,
    as_bearer,
    check_untouched,
    closed_edge,
    without,
)
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import RawStream, raw, raw_tcp, start, whole

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
_NOWHERE = ("/metrics", "/health", "/ready", "/nothing/here", "/v1/models_", "/openapi.json/x")
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_CODES = {400: "invalid_request", 401: "invalid_api_key", 403: "permission_denied"}
_REASONS = {400: "INVALID_REQUEST", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}


def test_every_route_and_first_frame_is_in_the_tables() -> None:
    assert set(GOOD) == {(it.method, it.path) for it in ALL_ROUTES}
    kinds = edge_pb2.ClientFrame.DESCRIPTOR.oneofs_by_name["kind"].fields
    assert set(FIRST_FRAMES) == {it.name for it in kinds}
    listed = {it.path for it in ALL_ROUTES if it.access is Access.PUBLIC}
    assert listed == {path for (_, path), it in GOOD.items() if it.public}


# HTTP.


def check_refused(answer: Answer, status: int, route: Route | None = None) -> None:
    """In the shape of the route's API, and with all that an answer of the edge has."""
    assert answer.status == status
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert answer.headers["x-request-id"]
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if "ratelimit" in name]
    said: Any = msgspec.json.decode(
        answer.body, type=OpenAiErrorBody if route is None else route.error
    )
    assert said.error.message and said.error.type == _TYPES.get(status, "not_found_error")
    if isinstance(said, OpenAiErrorBody):
        assert said.error.code == _CODES.get(status, "model_not_found")
    else:
        assert isinstance(said, AnthropicErrorBody)
        assert said.request_id == answer.headers["x-request-id"]


async def asked(ask: Ask, route: Route, credential: str) -> Answer:
    good = GOOD[route.method, route.path]
    return await ask(route.method, good.path, good.body, as_bearer(credential))


@pytest.mark.parametrize("door", DOORS)
async def test_no_route_serves_who_has_no_good_credential(
    door: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with closed_edge(words, tmp_path, only_http=True) as mesh, DOORS[door](mesh) as ask:
        for route, (text, status) in itertools.product(ALL_ROUTES, REFUSED.values()):
            answer = await asked(ask, route, text)
            if route.access is Access.PUBLIC:
                assert answer.status == 200
            else:
                check_refused(answer, status, route)
                if text:
                    good = GOOD[route.method, route.path]
                    same = await ask(route.method, good.path, good.body, {"x-api-key": text})
                    check_refused(same, status, route)
        check_untouched(mesh)


@pytest.mark.parametrize("door", DOORS)
async def test_no_method_of_any_path_is_open(door: str, words: Vocabulary, tmp_path: Path) -> None:
    served = {(method, good.path) for (method, _), good in GOOD.items()}
    paths = sorted({it.path for it in GOOD.values()})
    async with closed_edge(words, tmp_path) as mesh, DOORS[door](mesh) as ask:
        for path in (*paths, *_NOWHERE):
            public = path in {it.path for it in GOOD.values() if it.public}
            for method in _METHODS:
                for headers in ({}, {"authorization": f"Basic {text_of('good')}"}):
                    body = None if method == "TRACE" else {"model": MODEL}
                    answer = await ask(method, path, body, headers)
                    expected = 401
                    if public:
                        expected = 200 if method in ("GET", "HEAD") else 405
                    assert answer.status == expected, (method, path)
                    if not public and method != "HEAD":
                        assert json.loads(answer.body)["error"]["message"]
                # Who has a key learns what there is.
                answer = await ask(method, path, None, as_bearer(text_of("good")))
                if path in _NOWHERE:
                    assert answer.status == 404, (method, path)
                elif (method.replace("HEAD", "GET"), path) not in served:
                    assert answer.status == 405, (method, path)
                    assert method not in answer.headers["allow"].split(", ")
        check_untouched(mesh)


@pytest.mark.parametrize("door", DOORS)
async def test_a_good_credential_is_served_what_it_is_for_and_nothing_else(
    door: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with closed_edge(words, tmp_path) as mesh, DOORS[door](mesh) as ask:
        guarded = [it for it in ALL_ROUTES if it.access is Access.CREDENTIAL]
        for route in guarded:
            check_refused(await asked(ask, route, without(route.scope)), 403, route)
            if GOOD[route.method, route.path].names_model:
                check_refused(await asked(ask, route, text_of("elsewhere")), 404, route)
        listed = await asked(ask, _route("/v1/models"), text_of("elsewhere"))
        assert [it["id"] for it in json.loads(listed.body)["data"]] == ["small"]
        check_untouched(mesh)
        for route in guarded:
            good = GOOD[route.method, route.path]
            before = len(mesh.region.opened)
            answer = await asked(ask, route, text_of("good"))
            assert answer.status == good.status, (route.path, answer.body)
            assert len(mesh.region.opened) - before == good.computes
            others = sorted(GRANTED - {route.scope}, key=lambda it: it.value)
            narrower = await asked(ask, route, without(others[0]))
            assert narrower.status == good.status, "the scope that it needs is enough"
            header = {"x-api-key": text_of("good")}
            assert (await ask(route.method, good.path, good.body, header)).status == good.status
        await mesh.settled()


@pytest.mark.parametrize("door", DOORS)
async def test_what_was_refused_does_not_count_for_its_tenant(
    door: str, words: Vocabulary, tmp_path: Path
) -> None:
    """A wrong secret with the id of a tenant's key uses up nothing of that tenant."""
    wrong = text_of("acme")[:-4] + "0000"
    async with closed_edge(words, tmp_path) as mesh, DOORS[door](mesh) as ask:
        for route in ALL_ROUTES:
            if route.access is Access.CREDENTIAL:
                check_refused(await asked(ask, route, wrong), 401, route)
        answer = await asked(ask, _route("/v1/chat/completions"), text_of("acme"))
        assert answer.headers["x-ratelimit-limit-requests"] == str(FEW)
        assert answer.headers["x-ratelimit-remaining-requests"] == str(FEW - 1)
        await mesh.settled()


def _route(path: str) -> Route:
    return next(it for it in ALL_ROUTES if it.path == path)


REPLIES = [it.path for it in ALL_ROUTES if it.event is not None and it.request is not None]


@pytest.mark.parametrize("path", REPLIES)
@pytest.mark.parametrize("door", DOORS)
async def test_nobody_joins_a_reply_of_another_tenant(
    door: str, path: str, words: Vocabulary, tmp_path: Path
) -> None:
    """With its idempotency key and the id of its last event; nor does one learn that it is there:
    another request with that key is served as any other."""
    body = dict(GOOD["POST", path].body or {}) | {"stream": True}
    same = {"idempotency-key": "k"}
    mine, others = as_bearer(text_of("good")), as_bearer(text_of("bolt"))
    region_opened: list[int] = []
    async with closed_edge(words, tmp_path) as mesh, DOORS[door](mesh) as ask:

        async def run(*headers: dict[str, str], **changes: object) -> str:
            merged = {name: value for it in headers for name, value in it.items()}
            answer = await ask("POST", path, body | changes, merged)
            assert answer.status == 200, answer.body
            region_opened.append(len(mesh.region.opened))
            return answer.body.decode()

        first = await run(mine, same)
        ids = [line[4:] for line in first.splitlines() if line.startswith("id: ")]
        middle = {"last-event-id": ids[len(ids) // 2]}
        rest = await run(mine, same, middle)
        assert region_opened == [1, 1] and 0 < len(rest) < len(first), "it is the same reply"
        await run(others, same, middle)
        await run(others, same)
        assert region_opened[2] == 2, "another tenant's runs by itself"
        await run(as_bearer(text_of("acme")), same, temperature=0.5)
        one, two = mesh.region.opened[0], mesh.region.opened[1]
        assert one.cache_salt != two.cache_salt and one.request_id != two.request_id
        assert not two.resume.count, "nothing of the first was handed to it"
        await mesh.settled()


# The native protocol.

WAYS: Final[Mapping[str, Callable[[Running], AbstractAsyncContextManager[Connection]]]] = {
    "QUIC": raw,
    "TCP": raw_tcp,
}


@pytest.mark.parametrize("way", WAYS)
async def test_no_first_frame_is_served_to_who_has_no_good_credential(
    way: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with closed_edge(words, tmp_path, tls=True) as mesh:
        for text, status in REFUSED.values():
            async with WAYS[way](mesh) as connection:
                await check_frames_refused(connection, text, _REASONS[status])
        check_untouched(mesh)


async def check_frames_refused(
    connection: Connection,
    credential: str,
    reason: str,
    scopes: Collection[Scope] = frozenset(Scope),
) -> None:
    """Each of these scopes on a stream of its own, which ends."""
    for kind, first in FIRST_FRAMES.items():
        if first.scope not in scopes:
            continue
        for made in first.made.values():
            frame = made(credential)
            assert frame.WhichOneof("kind") == kind
            stream = RawStream(connection, encode_frame(frame.SerializeToString()))
            if kind == "describe":
                await eventually(stream.ended.is_set)
                (description,) = stream.frames
                assert not description.description.models, "nor is told what is served"
            elif first.answered:
                error = await stream.error()
                assert error.reason == (first.refused_as or reason)
            else:
                await eventually(stream.ended.is_set)
                assert stream.frames == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_good_credential_is_for_the_first_frames_of_its_scope(
    way: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with closed_edge(words, tmp_path, tls=True) as mesh:
        async with WAYS[way](mesh) as connection:
            for scope in (Scope.CHAT, Scope.TOKENIZE):
                await check_frames_refused(connection, without(scope), "PERMISSION_DENIED", {scope})
            await check_frames_refused_of_model(connection, text_of("elsewhere"))
        check_untouched(mesh)
        async with mesh.client(key=without(Scope.CHAT)) as client:
            assert len((await client.tokenize("hello", model=MODEL)).ids) > 0
        async with WAYS[way](mesh) as connection:
            for made in FIRST_FRAMES["chat"].made.values():
                before = len(mesh.region.opened)
                frame = encode_frame(made(text_of("good")).SerializeToString())
                stream = RawStream(connection, frame)
                await eventually(stream.ended.is_set)
                last = stream.frames[-1]
                if last.HasField("error"):
                    assert error_from_proto(last.error).reason == "UNKNOWN_CHAT"
                    assert len(mesh.region.opened) == before
                else:
                    assert last.HasField("done")
                    assert len(mesh.region.opened) == before + 1
            ran = len(mesh.region.opened)
            for made in FIRST_FRAMES["typed"].made.values():
                frame = encode_frame(made(text_of("good")).SerializeToString())
                stream = RawStream(connection, frame)
                connection.send(stream.stream_id, frame * 4)
                await eventually(lambda: len(mesh.region.opened) > ran)


async def check_frames_refused_of_model(connection: Connection, credential: str) -> None:
    """A key that is for another model."""
    for kind in ("chat", "typed", "tokenize"):
        for name, made in FIRST_FRAMES[kind].made.items():
            frame = encode_frame(made(credential).SerializeToString())
            stream = RawStream(connection, frame)
            await eventually(stream.ended.is_set)
            reasons = [error_from_proto(it.error).reason for it in stream.frames]
            expected = "UNKNOWN_CHAT" if name == "resumed" else "UNKNOWN_MODEL"
            assert reasons == ([] if kind == "typed" else [expected])


async def test_no_frame_goes_on_with_a_chat_of_another_tenant(
    words: Vocabulary, tmp_path: Path
) -> None:
    """With its resume token, its idempotency key and its client's secret."""
    async with closed_edge(words, tmp_path) as mesh:
        async with (
            mesh.client(key=text_of("good"), client_secret=b"s" * 16) as mine,
            mesh.client(key=text_of("bolt"), client_secret=b"s" * 16) as others,
        ):
            chat = await start(mine, idempotency_key="one", model=MODEL)
            await whole(chat)
            async with others.resume(chat.resume_token) as stolen:
                with pytest.raises(OutriderError) as refused:
                    await stolen.result()
            assert refused.value.reason == "UNKNOWN_CHAT"
            async with others.resume("x" * len(chat.resume_token)) as unknown:
                with pytest.raises(OutriderError) as never:
                    await unknown.result()
            assert never.value.message == refused.value.message, "as if it did not exist"
            ran = len(mesh.region.opened)
            await whole(await start(others, idempotency_key="one", model=MODEL))
            first, second = mesh.region.opened[ran - 1 :]
            assert first.cache_salt != second.cache_salt and first.request_id != second.request_id
            async with mine.resume(chat.resume_token) as again:
                assert (await again.result()).text == REPLY
