"""Clients that draft by means of their own, over gRPC at a real edge before a scripted region."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.access.api_keys import USER_SCOPES, Scope
from outrider.errors import (
    DeadlineError,
    DrainingError,
    InvalidRequestError,
    InvalidSamplingError,
    KeyReusedError,
    MalformedFrameError,
    NoReplicaError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    UnauthenticatedError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import end_call, from_rpc_error
from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason
from outrider.testing import eventually
from outrider.v1 import common_pb2, verify_pb2
from outrider.verify_client import VerifyClient
from outrider.wire import error_from_proto
from services.edge.access.identity import TenantConfig
from services.edge.http import verifying
from services.edge.http.config import HttpConfig
from services.edge.http.verifying import PATH
from services.edge.limits.quotas import RateLimit
from tests.api_keys import key_of, text_of
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.region import RegionSession
from tests.edge.integration.running import REPLY, Running

EDGE: dict[str, Any] = {
    "http": HttpConfig(port=0),
    "anonymous": False,
    "tenants": (TenantConfig("acme"), TenantConfig("bolt"), TenantConfig("few", max_sessions=1)),
    "keys": (key_of("acme"), key_of("bolt"), key_of("few")),
}
pytestmark = pytest.mark.edge(**EDGE)
LONG = "so long a reply that nobody reads it " * 200


class Knows:
    """Drafts a text that it knows, behind a prompt of any length."""

    def __init__(self, reply: Sequence[int], num_prompt: int) -> None:
        self.reply = tuple(reply)
        self.num_prompt = num_prompt

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        at = len(ids) - self.num_prompt
        return self.reply[at : at + max_tokens]


class Slow(Knows):
    """Takes until it is let go for its first drafts, and makes no others."""

    def __init__(self, reply: Sequence[int], num_prompt: int) -> None:
        super().__init__(reply, num_prompt)
        self.go = threading.Event()
        self._has_drafted = False

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        if self._has_drafted:
            return ()
        self._has_drafted = True
        assert self.go.wait(30)
        return super().draft(ids, max_tokens)


class Guesses:
    """Drafts the same token over and over."""

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        return [7] * max_tokens


def has_drafts_behind(session: RegionSession, num_tokens: int) -> bool:
    return session.begin + len(session.drafts) > num_tokens


NOTHING = Knows((), 0)
_RIGHT = st.integers(0, len(REPLY)).map(lambda at: list(REPLY.encode()[at : at + 5]))
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, len(REPLY) + 3),
        st.one_of(_RIGHT, st.lists(st.integers(0, 255), max_size=6)),
    ),
    max_size=10,
)
"""Epoch, base and ids of each."""


def client(mesh: Running, key: str = "acme") -> VerifyClient:
    return VerifyClient([f"127.0.0.1:{mesh.ports.http}"], key=text_of(key), insecure=True)


async def reply_of(mesh: Running, key: str = "acme", **options: Any) -> str:
    """What a session says, of a client that drafts nothing."""
    prompt = options.pop("prompt", "hello")
    async with client(mesh, key) as edge:
        session = edge.verify(prompt, NOTHING, **options)
        async for _ in session:
            pass
        return session.reply.text


_CALLS: list[Any] = []
"""Under way, or not known to have ended."""


class RawCall:
    """A call without what the client checks."""

    def __init__(self, channel: grpc.aio.Channel, key: str, **options: Any) -> None:
        metadata = (("authorization", f"Bearer {text_of(key)}"),)
        method: Any = channel.stream_stream(PATH)
        self.call = method(metadata=metadata, **options)
        _CALLS.append(self.call)

    async def send(self, *messages: verify_pb2.VerifyRequest | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else message.SerializeToString()
            await self.call.write(data)

    async def next(self) -> verify_pb2.VerifyResponse:
        data = await asyncio.wait_for(self.call.read(), 30)
        assert isinstance(data, bytes), "the call has ended"
        return verify_pb2.VerifyResponse.FromString(data)

    async def rest(self) -> list[verify_pb2.VerifyResponse]:
        """What comes until the end. Raises what the status says."""
        found = []
        try:
            while isinstance(data := await self.call.read(), bytes):
                found.append(verify_pb2.VerifyResponse.FromString(data))
                if found[-1].HasField("error"):
                    raise error_from_proto(found[-1].error)
                if found[-1].HasField("done"):
                    break
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return found

    async def error(self) -> OutriderError:
        with pytest.raises(OutriderError) as raised:
            await asyncio.wait_for(self.rest(), 30)
        return raised.value.bare()  # its traceback would hold the call, and that the connection


@asynccontextmanager
async def raw_channel(mesh: Running, *options: tuple[str, int]) -> AsyncIterator[grpc.aio.Channel]:
    where = f"127.0.0.1:{mesh.ports.http}"
    async with grpc.aio.insecure_channel(where, options=options) as channel:
        try:
            yield channel
        finally:
            while _CALLS:
                end_call(_CALLS.pop())
    gc.collect()  # a call that failed is in a circle with its error


def opening(**fields: Any) -> verify_pb2.VerifyRequest:
    fields = fields or {"text": "hello"}
    return verify_pb2.VerifyRequest(open=verify_pb2.OpenVerification(**fields))


def drafts(epoch: int, base: int, *ids: int) -> verify_pb2.VerifyRequest:
    draft = verify_pb2.DraftTokens(epoch=epoch, base=base, ids=ids)
    return verify_pb2.VerifyRequest(draft=draft)


def text_in(responses: Sequence[verify_pb2.VerifyResponse]) -> str:
    return "".join(it.verified.text for it in responses)


async def test_drafts_are_verified(mesh: Running, words: Vocabulary) -> None:
    mesh.region.hold(3)
    drafter = Knows(words.encode(REPLY), len("hello"))
    async with client(mesh) as edge:
        session = edge.verify(words.encode("hello"), drafter, vocabulary_digest=words.digest)
        async for tokens in session:
            if not mesh.region.gate.is_set():
                # The drafts behind the first tokens are at the region before it goes on.
                (live,) = mesh.region.live.values()
                await eventually(partial(has_drafts_behind, live, 3))
                mesh.region.gate.set()
            assert tokens.ids == session.ids[tokens.base :]
        reply = session.reply
    assert (reply.text, reply.finish_reason) == (REPLY, FinishReason.STOP)
    (known,) = mesh.region.finished
    assert known.num_accepted > 0
    assert session.prompt_ids == tuple(words.encode("hello"))
    assert reply.num_accepted >= known.num_accepted
    await eventually(lambda: mesh.sample("outrider_edge_client_drafts_total", fate="taken") > 0)
    taken, accepted = (
        mesh.metrics.registry.get_sample_value("outrider_edge_client_drafts_total", {"fate": fate})
        for fate in ("taken", "accepted")
    )
    assert taken is not None and accepted is not None and taken >= accepted > 0


@pytest.mark.edge(http=HttpConfig(port=0, idle_timeout_s=600.0))
@pytest.mark.parametrize("is_ended", [True, False])
async def test_a_client_that_is_done_closes_its_connection(mesh: Running, is_ended: bool) -> None:
    """At once: not when garbage in cycles is looked for, nor when the edge finds it idle."""
    gc.disable()
    try:
        async with client(mesh) as edge:
            session = edge.verify("hello", NOTHING)
            async for _ in session:
                if not is_ended:
                    break
        await eventually(lambda: mesh.http.num_connections == 0)
    finally:
        gc.enable()


@pytest.mark.parametrize("is_right", [True, False])
async def test_drafts_that_took_long_count_behind_what_is_final(
    is_right: bool, mesh: Running, words: Vocabulary
) -> None:
    mesh.region.hold(3)
    reply = list(words.encode(REPLY))
    if not is_right:
        reply[1] ^= 1
    drafter = Slow(reply, len("hello"))
    async with client(mesh) as edge:
        session = edge.verify(words.encode("hello"), drafter, vocabulary_digest=words.digest)
        async for _ in session:
            drafter.go.set()
            if is_right and not mesh.region.gate.is_set():
                (live,) = mesh.region.live.values()
                await eventually(partial(has_drafts_behind, live, 3))
            mesh.region.gate.set()
    assert session.reply.text == REPLY
    (known,) = mesh.region.finished
    assert (known.num_accepted > 0) is is_right


@pytest.mark.parametrize("drafter", [Guesses(), NOTHING])
async def test_the_reply_is_the_same_whatever_is_drafted(mesh: Running, drafter: Any) -> None:
    async with client(mesh) as edge:
        session = edge.verify([Message("user", "hello")], drafter)
        async for _ in session:
            pass
    assert session.reply.text == REPLY
    assert mesh.region.opened[0].speculation == common_pb2.SPECULATION_ON


async def test_plain_text_and_the_contract_as_the_wire_has_it(
    mesh: Running, words: Vocabulary
) -> None:
    reply = (*words.encode(REPLY), min(words.stop_ids))
    mesh.region.hold(3)
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening(text="hello", wants_prompt_ids=True))
        opened = (await call.next()).opened
        assert opened.model == "small" and opened.prompt_tokens == len("hello")
        assert opened.vocabulary_digest == words.digest
        assert tuple(opened.prompt_ids) == tuple(words.encode("hello"))
        assert opened.max_drafts_ahead > 0 and opened.edge == "edge"
        first = (await call.next()).verified
        assert tuple(first.ids) == reply[:3] and (first.base, first.accepted) == (0, 0)
        assert first.model_identity
        # Of an epoch long past, with a gap, and right ones in two messages.
        await call.send(drafts(3, 3, *reply[3:5]), drafts(2, 3, 1), drafts(3, 9, 1))
        await call.send(drafts(3, 5, *reply[5:7]))
        (live,) = mesh.region.live.values()
        await eventually(lambda: len(live.drafts) == 4)
        mesh.region.gate.set()
        *verified, last = await call.rest()
    assert first.text + text_in(verified) == REPLY
    second = verified[0].verified
    assert (second.base, second.accepted, second.epoch) == (3, 4, 3)
    assert last.done.finish_reason == common_pb2.FINISH_REASON_STOP
    assert (last.done.upto, last.done.ignored_drafts) == (len(reply), 2)
    assert last.done.region == "test-region"


# Who may, and how much.


async def test_who_has_no_good_key_is_refused(mesh: Running) -> None:
    with pytest.raises(UnauthenticatedError, match="not known here"):
        await reply_of(mesh, "nobody's")
    async with VerifyClient([f"127.0.0.1:{mesh.ports.http}"], insecure=True) as edge:
        with pytest.raises(UnauthenticatedError):
            await anext(aiter(edge.verify("hello", NOTHING)))
    assert mesh.region.opened == []


@pytest.mark.edge(keys=(key_of("acme", scopes=USER_SCOPES - {Scope.CHAT}),))
async def test_a_key_needs_the_scope_of_chats(mesh: Running) -> None:
    with pytest.raises(PermissionDeniedError):
        await reply_of(mesh)


async def test_a_tenant_has_its_limits(mesh: Running) -> None:
    mesh.region.hold(0)
    async with raw_channel(mesh) as channel:
        first = RawCall(channel, "few")
        await first.send(opening())
        await first.next()
        with pytest.raises(RateLimitedError):
            await reply_of(mesh, "few")
        mesh.region.gate.set()
        assert text_in(await first.rest()) == REPLY
    assert await reply_of(mesh, "few") == REPLY


@pytest.mark.edge(max_chats_per_address=2)
async def test_sessions_count_as_chats_of_their_address(mesh: Running) -> None:
    mesh.region.hold(0)
    async with raw_channel(mesh) as channel:
        calls = [RawCall(channel, "acme") for _ in range(2)]
        for call in calls:
            await call.send(opening())
            await call.next()
        with pytest.raises(OverloadedError, match="chats under way"):
            await reply_of(mesh)
        mesh.region.gate.set()
        for call in calls:
            assert text_in(await call.rest()) == REPLY


@pytest.mark.edge(max_streams_per_address=2)
async def test_calls_that_say_nothing_are_bounded(mesh: Running) -> None:
    async with raw_channel(mesh) as channel:
        idle = [RawCall(channel, "acme") for _ in range(2)]
        calls = mesh.http.frontend.replies
        await eventually(lambda: len(calls) == 2)
        with pytest.raises(OverloadedError, match="open streams"):
            await reply_of(mesh)
        for call in idle:
            call.call.cancel()
        await eventually(lambda: not calls)
    assert await reply_of(mesh) == REPLY


@pytest.mark.edge(request_timeout_s=0.2)
async def test_who_opens_nothing_is_told_so(mesh: Running) -> None:
    async with raw_channel(mesh) as channel:
        error = await RawCall(channel, "acme").error()
    assert isinstance(error, DeadlineError) and "no open came" in error.message


async def test_a_flood_of_messages_ends_its_session_alone(
    mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "MESSAGES", RateLimit(per_s=1e-3, burst=20.0))
    mesh.region.hold(3)
    async with raw_channel(mesh) as channel:
        flood = RawCall(channel, "acme")
        await flood.send(opening(), *(drafts(1, 0, 1) for _ in range(20)))
        error = await flood.error()
        assert isinstance(error, RateLimitedError) and error.retry_delay_ms
        mesh.region.gate.set()
        beside = RawCall(channel, "acme")
        await beside.send(opening())
        assert text_in(await beside.rest()) == REPLY


@pytest.mark.edge(http=HttpConfig(port=0, max_unsent_bytes=2048), reply=LONG)
async def test_who_does_not_read_loses_the_session(mesh: Running) -> None:
    narrow = ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)
    async with raw_channel(mesh, *narrow) as channel:
        call = RawCall(channel, "acme")
        mesh.region.block_tokens = 1
        await call.send(opening(text="hello", sampling=common_pb2.Sampling(max_tokens=1 << 20)))
        await eventually(lambda: bool(mesh.region.cancelled))
        error = await call.error()
    assert isinstance(error, OverloadedError) and "does not read" in error.message


async def test_one_tenant_s_session_is_nothing_to_another(mesh: Running) -> None:
    mesh.region.hold(3)
    async with raw_channel(mesh) as channel:
        mine, theirs = RawCall(channel, "acme"), RawCall(channel, "bolt")
        for call in (mine, theirs):
            await call.send(opening(text="hello", idempotency_key="same"))
            await call.next()
        assert len(mesh.region.opened) == 2, "two sessions"
        salts = {it.cache_salt for it in mesh.region.opened}
        assert len(salts) == 2, "in two trust groups"
        mesh.region.gate.set()
        assert text_in(await mine.rest()) == text_in(await theirs.rest()) == REPLY


# What cannot be served, and what breaks the protocol.


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"text": "hello", "vocabulary_digest": b"x" * 32}, VocabularyMismatchError),
        ({"text": "hello", "vocabulary_digest": b"x" * 65}, InvalidRequestError),
        ({"ids": [1, 2]}, InvalidRequestError),
        ({"text": "a", "ids": [1]}, InvalidRequestError),
        ({"model": "small"}, InvalidRequestError),
        ({"text": "hello", "model": "none such"}, UnknownModelError),
        ({"text": "hello", "idempotency_key": "x" * 129}, InvalidRequestError),
        ({"text": "hello", "resume": {"upto": 3, "ids": [1]}}, InvalidRequestError),
        ({"text": "hello", "resume": {"resume_token": "x"}}, InvalidRequestError),
        ({"text": "hello", "sampling": {"temperature": 9.0}}, InvalidSamplingError),
        ({"text": "hello", "sampling": {"acceptance_threshold": 0.9}}, InvalidSamplingError),
        ({"text": "hello", "sampling": {"num_logprobs": 1}}, InvalidSamplingError),
    ],
)
async def test_what_cannot_be_served_is_refused(
    mesh: Running, fields: dict[str, Any], kind: type[OutriderError]
) -> None:
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening(**fields))
        error = await call.error()
    assert isinstance(error, kind), error
    assert mesh.region.opened == []


async def test_ids_of_a_prompt_are_those_of_the_vocabulary(
    mesh: Running, words: Vocabulary
) -> None:
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening(ids=[1, 1 << 20], vocabulary_digest=words.digest))
        assert "outside the vocabulary" in (await call.error()).message


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff"],
        [b""],
        [drafts(0, 0, 1)],
        [opening(), opening()],
        [opening(), b"\xff"],
        [opening(), drafts(1, 0, *range(1025))],
        [opening(), b"x" * (2 << 20)],
    ],
)
async def test_who_breaks_the_protocol_is_told_so(
    mesh: Running, messages: list[verify_pb2.VerifyRequest | bytes]
) -> None:
    mesh.region.hold(3)
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(*messages)
        error = await call.error()
        assert isinstance(error, InvalidRequestError) and error.message
        mesh.region.gate.set()
        assert await reply_of(mesh) == REPLY


async def test_drafts_outside_the_vocabulary_end_the_session(mesh: Running) -> None:
    mesh.region.hold(0)
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        await call.next()
        await call.send(drafts(1, 0, (1 << 32) - 1))
        error = await call.error()
    assert isinstance(error, InvalidRequestError) and "outside the vocabulary" in error.message
    await mesh.settled()


async def test_a_call_that_ends_without_an_open_or_within_a_message(mesh: Running) -> None:
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.call.done_writing()
        assert isinstance(await call.error(), MalformedFrameError)


async def test_it_is_grpc_over_http2_alone(mesh: Running) -> None:
    async with plain(mesh) as caller:
        assert (await caller.post(PATH, json={})).status_code == 415
        headers = {"content-type": "application/grpc"}
        answer = await caller.post(PATH, content=b"", headers=headers)
        assert answer.status_code == 400 and "HTTP/2" in answer.json()["error"]["message"]


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(sessions=st.lists(MESSAGES, min_size=1, max_size=6))
def test_no_drafts_change_the_reply(
    words: Vocabulary, tmp_path_factory: pytest.TempPathFactory, sessions: list[Any]
) -> None:
    """Whatever clients send, right, wrong, early, late, with gaps or without."""

    async def session(channel: grpc.aio.Channel, messages: list[Any]) -> None:
        call = RawCall(channel, "acme")
        await call.send(opening())
        received = [await call.next()]
        try:
            for epoch, base, ids in messages:
                await call.send(drafts(epoch, base, *ids))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it is whole already
        received += await call.rest()
        assert text_in(received) == REPLY
        ids = [it for response in received for it in response.verified.ids]
        assert ids == [*words.encode(REPLY), min(words.stop_ids)]

    async def run() -> None:
        folder = tmp_path_factory.mktemp("edge")
        async with serving_http(words, folder, **EDGE) as mesh, raw_channel(mesh) as channel:
            await asyncio.gather(*(session(channel, messages) for messages in sessions))

    asyncio.run(run())


# The end, and what comes after a break.


async def test_a_cancel_ends_the_session(mesh: Running) -> None:
    mesh.region.stop_after = 3
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        await call.next()
        await call.next()
        cancel = verify_pb2.VerifyRequest()
        cancel.cancel.SetInParent()
        await call.send(cancel)
        (last,) = await call.rest()
    assert last.done.finish_reason == common_pb2.FINISH_REASON_CANCELLED
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])


async def test_a_client_that_leaves_ends_the_session(mesh: Running) -> None:
    mesh.region.stop_after = 3
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        await call.next()
        call.call.cancel()
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])


async def test_half_closing_leaves_the_session_to_itself(mesh: Running) -> None:
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        await call.call.done_writing()
        assert text_in(await call.rest()) == REPLY


async def test_the_call_s_deadline_is_the_session_s(mesh: Running) -> None:
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme", timeout=50.0)
        await call.send(opening(text="hello", deadline_ms=120_000))
        await call.rest()
        call = RawCall(channel, "acme")
        await call.send(opening(text="hello", deadline_ms=7_000))
        await call.rest()
    given, own = (it.deadline_ms for it in mesh.region.opened)
    assert 0 < given <= 50_000 and 0 < own <= 7_000


async def test_a_broken_call_goes_on_where_it_was(mesh: Running, words: Vocabulary) -> None:
    reply = (*words.encode(REPLY), min(words.stop_ids))
    mesh.region.hold(3)
    again = {"text": "hello", "idempotency_key": "one"}
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening(**again))
        await call.next()
        first = (await call.next()).verified
        call.call.cancel()
        await eventually(lambda: mesh.edge.telemetry.num_connections == 1)
        point = {
            "upto": 3,
            "num_chars": len(first.text),
            "ids": first.ids,
            "model_identity": first.model_identity,
        }
        call = RawCall(channel, "acme")
        await call.send(opening(**again, resume=point))
        assert (await call.next()).opened.model == "small"
        await call.send(drafts(1, 3, *reply[3:6]))
        mesh.region.gate.set()
        *rest, last = await call.rest()
        assert first.text + text_in(rest) == REPLY
        assert rest[0].verified.base == 3 and last.done.upto == len(reply)
        assert len(mesh.region.opened) == 1, "the same session"
        call = RawCall(channel, "acme")
        await call.send(opening(text="another", idempotency_key="one"))
        assert isinstance(await call.error(), KeyReusedError)


async def test_another_edge_goes_on_from_the_ids(mesh: Running, words: Vocabulary) -> None:
    reply = words.encode(REPLY)
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        point = {
            "upto": 4,
            "num_chars": 4,
            "ids": reply[:4],
            "model_identity": b"\x0a" * 32,
        }
        await call.send(opening(text="hello", idempotency_key="new here", resume=point))
        *rest, _ = await call.rest()
    assert rest[0].HasField("opened") and rest[1].verified.base == 4
    assert REPLY[:4] + text_in(rest) == REPLY


async def test_the_region_s_error_is_the_call_s_status(mesh: Running) -> None:
    mesh.region.error = NoReplicaError("none is ready", retry_delay_ms=70)
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        error = await call.error()
    assert isinstance(error, NoReplicaError)
    assert (error.message, error.retry_delay_ms) == ("none is ready", 70)


async def test_an_edge_that_stops_takes_no_call(mesh: Running) -> None:
    mesh.edge.listener.shared.is_draining = True
    async with raw_channel(mesh) as channel:
        call = RawCall(channel, "acme")
        await call.send(opening())
        assert isinstance(await call.error(), DrainingError)


async def test_sampling_is_the_model_s(mesh: Running) -> None:
    sampling = SamplingParams(temperature=0.7, seed=11, max_tokens=99)
    await reply_of(mesh, sampling=sampling)
    (opened,) = mesh.region.opened
    assert (opened.sampling.seed, opened.sampling.max_tokens) == (11, 99)
