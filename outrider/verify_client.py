"""Draft for a model of a mesh by means of your own, and have it verify the drafts.

    async with VerifyClient(["edge.example:8080"], key=key) as edge:
        session = edge.verify("Once upon a time", drafter)
        async for tokens in session:
            print(tokens.text, end="", flush=True)

The tokens are those that the model alone would have written, whatever the drafter says, and a
session whose edge dies goes on at another one. The protocol: docs/guides/verify.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

import grpc
import grpc.aio

from outrider.backoff import Backoff
from outrider.errors import ConfigError, MalformedFrameError, OutriderError, UnavailableError
from outrider.models.chat import Message
from outrider.rpc import end_call, from_rpc_error
from outrider.sampling.params import SamplingParams
from outrider.session.runs import next_run
from outrider.session.types import FinishReason, Usage
from outrider.speculation.verification import common_prefix_length
from outrider.v1 import verify_pb2, verify_pb2_grpc
from outrider.wire import (
    error_from_proto,
    finish_reason_from_proto,
    message_to_proto,
    sampling_to_proto,
    usage_from_proto,
)

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""A text or ids as they go to the model, or a conversation for its chat template."""
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 2.0
_MAX_LOSSES: Final = 8
"""Calls that may break in a row before a session is given up."""
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)


class Drafter(Protocol):
    """Guesses how a text goes on, in the model's own token ids."""

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most `max_tokens` tokens that may follow `ids`; none where it has no guess. Called in
        a thread."""
        ...


@dataclass(frozen=True, slots=True)
class Verified:
    """Tokens that are final."""

    base: int
    """Position of the first in the reply."""
    ids: tuple[int, ...]
    accepted: int
    """So many of them, from the first on, were the drafter's."""
    text: str


@dataclass(frozen=True, slots=True)
class VerifiedReply:
    """How a session ended."""

    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    usage: Usage
    num_commits: int
    """Messages that brought the tokens."""
    num_accepted: int
    """Tokens that were the drafter's."""
    num_calls: int
    """Calls that it took: 1, and one more for each that broke."""
    num_moves: int
    """How often another replica went on with it."""
    inexact: bool


class VerifyClient:
    """Connections to the edges of a mesh, which are tried in turn."""

    def __init__(
        self,
        edges: Sequence[str],
        *,
        key: str = "",
        ca: Path | None = None,
        insecure: bool = False,
        server_name: str = "",
    ) -> None:
        """`edges`: host:port of their HTTP listeners. `ca`: certificates to trust, None: the usual
        ones; `server_name`: the name in the edge's certificate if it is another. `insecure`: no
        TLS, as edges serve HTTP on the loopback. Raises ConfigError."""
        if not edges:
            raise ConfigError("name at least one edge, as host:port of its HTTP listener")
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._credentials = None if insecure else _credentials(ca)
        named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
        self._channels = [self._channel(edge, (*_OPTIONS, *named)) for edge in edges]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def verify(
        self,
        prompt: Prompt,
        drafter: Drafter,
        *,
        model: str = "",
        vocabulary_digest: bytes = b"",
        sampling: SamplingParams | None = None,
        max_drafts: int = 16,
        deadline_ms: int = 0,
        user: str = "",
    ) -> Verification:
        """A session, which begins when it is iterated over. `vocabulary_digest`: of the drafter's
        vocabulary; needed with a prompt of ids. `max_drafts`: most drafts ahead."""
        opening = verify_pb2.OpenVerification(
            model=model,
            vocabulary_digest=vocabulary_digest,
            sampling=sampling_to_proto(sampling or SamplingParams()),
            deadline_ms=deadline_ms,
            idempotency_key=secrets.token_hex(16),
            user=user,
            wants_prompt_ids=True,
        )
        _put_prompt(opening, prompt)
        return Verification(self._channels, self._metadata, opening, drafter, max_drafts)

    def _channel(self, edge: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(edge, options=options)
        return grpc.aio.secure_channel(edge, self._credentials, options=options)


class Verification:
    """One session: iterate over its tokens, then read `reply`."""

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        metadata: Sequence[tuple[str, str]],
        opening: verify_pb2.OpenVerification,
        drafter: Drafter,
        max_drafts: int,
    ) -> None:
        self._channels = channels
        self._metadata = metadata
        self._opening = opening
        self._drafter = drafter
        self._max_drafts = max_drafts
        self._max_ahead = 0
        """Drafts that the edge keeps."""
        self._prompt: tuple[int, ...] = ()
        self._ids: list[int] = []
        """Final ones."""
        self._texts: list[str] = []
        self._ahead: list[int] = []
        """Drafts behind them, sent."""
        self._epoch = 0
        self._news = asyncio.Event()
        """There may be room for drafts."""
        self._num_commits = 0
        self._num_accepted = 0
        self._num_calls = 0
        self._reply: VerifiedReply | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """Final tokens so far."""
        return tuple(self._ids)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Those of the prompt, once the session is under way."""
        return self._prompt

    @property
    def reply(self) -> VerifiedReply:
        """The reply, once all was iterated over. Raises OutriderError before."""
        if self._reply is None:
            raise OutriderError("the session has not ended; iterate over it first")
        return self._reply

    async def __aiter__(self) -> AsyncIterator[Verified]:
        """The tokens as they become final. A call that breaks is made again, at the next edge.
        Raises OutriderError."""
        backoff, num_losses = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S), 0
        while self._reply is None:
            num_before = len(self._ids)
            try:
                async for tokens in self._call():
                    yield tokens
            except UnavailableError:
                num_losses = 1 if len(self._ids) > num_before else num_losses + 1
                if num_losses > _MAX_LOSSES:
                    raise
                await asyncio.sleep(backoff.next_s())

    async def _call(self) -> AsyncIterator[Verified]:
        channel = self._channels[self._num_calls % len(self._channels)]
        self._num_calls += 1
        self._opening.resume.run = next_run(self._opening.resume.run, time.time())
        self._begin_epoch()
        call = verify_pb2_grpc.VerifyServiceStub(channel).Verify(metadata=self._metadata)
        drafting: asyncio.Task[None] | None = None
        try:
            await call.write(verify_pb2.VerifyRequest(open=self._opening))
            # An iterator over the call that is left behind would keep it, and the connection, until
            # garbage in cycles is looked for.
            while isinstance(response := await call.read(), verify_pb2.VerifyResponse):
                kind = response.WhichOneof("kind")
                if kind == "opened":
                    self._opened(response.opened)
                    drafting = drafting or asyncio.create_task(self._draft(call))
                elif kind == "verified":
                    yield self._verified(response.verified)
                elif kind == "done":
                    self._done(response.done)
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await call.done_writing()
                    return
                elif kind == "error":
                    raise error_from_proto(response.error)
            if self._reply is None:
                raise UnavailableError("the call ended before the session did")
        except grpc.aio.AioRpcError as error:
            raise _error_of(error) from None
        except asyncio.InvalidStateError as error:  # a write to a call that has just ended
            raise UnavailableError("the call ended before the session did") from error
        finally:
            if drafting is not None:
                drafting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await drafting
            end_call(call)

    def _opened(self, opened: verify_pb2.VerificationOpened) -> None:
        self._prompt = tuple(opened.prompt_ids)
        self._max_ahead = opened.max_drafts_ahead
        self._opening.model = opened.model
        self._opening.resume.template_date = opened.template_date
        self._news.set()

    def _verified(self, told: verify_pb2.VerifiedTokens) -> Verified:
        ids = tuple(told.ids)
        if told.base != len(self._ids):
            raise MalformedFrameError(
                f"the edge sent tokens from {told.base} on, not from {len(self._ids)}"
            )
        same = common_prefix_length(self._ahead, ids)
        self._ids += ids
        self._texts.append(told.text)
        if same < len(ids):
            self._begin_epoch()
        else:
            self._ahead = self._ahead[same:]
        self._num_commits += 1
        self._num_accepted += told.accepted
        point = self._opening.resume
        point.upto = len(self._ids)
        point.ids.extend(ids)
        point.num_chars += len(told.text)
        if told.HasField("model_identity"):
            point.model_identity = told.model_identity
        self._news.set()
        return Verified(told.base, ids, told.accepted, told.text)

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._ahead = []

    def _done(self, done: verify_pb2.VerificationDone) -> None:
        self._reply = VerifiedReply(
            tuple(self._ids),
            "".join(self._texts),
            finish_reason_from_proto(done.finish_reason),
            usage_from_proto(done.usage),
            self._num_commits,
            self._num_accepted,
            self._num_calls,
            done.num_moves,
            done.inexact,
        )

    async def _draft(
        self,
        call: grpc.aio.StreamStreamCall[verify_pb2.VerifyRequest, verify_pb2.VerifyResponse],
    ) -> None:
        """Draft whenever there is room, until the call ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            epoch, base = self._epoch, len(self._ids) + len(self._ahead)
            room = min(self._max_drafts, self._max_ahead) - len(self._ahead)
            if room <= 0:
                continue
            text = [*self._prompt, *self._ids, *self._ahead]
            drafts = list(await asyncio.to_thread(self._drafter.draft, text, room))[:room]
            if epoch != self._epoch:
                # What became final meanwhile may be what was drafted: the rest is of use then.
                self._news.set()
                drafts = _behind([*self._prompt, *self._ids], [*text, *drafts])
                base = len(self._ids)
            if not drafts:
                continue
            self._ahead += drafts
            draft = verify_pb2.DraftTokens(epoch=self._epoch, base=base, ids=drafts)
            try:
                await call.write(verify_pb2.VerifyRequest(draft=draft))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # whoever reads is told why


def _behind(final: Sequence[int], guessed: Sequence[int]) -> list[int]:
    """What a guess says behind the final tokens; nothing if it says something else before."""
    is_right = common_prefix_length(guessed, final) == len(final)
    return list(guessed[len(final) :]) if is_right else []


def _error_of(status: grpc.aio.AioRpcError) -> OutriderError:
    """A status that says nothing of the edge's is that of a call which broke."""
    error = from_rpc_error(status)
    return UnavailableError(error.message) if type(error) is OutriderError else error


def _put_prompt(opening: verify_pb2.OpenVerification, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        opening.text = prompt
        return
    for each in prompt:
        if isinstance(each, Message):
            opening.messages.append(message_to_proto(each))
        else:
            opening.ids.append(each)


def _credentials(ca: Path | None) -> grpc.ChannelCredentials:
    """Raises ConfigError."""
    try:
        return grpc.ssl_channel_credentials(None if ca is None else ca.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the certificates of {ca}: {error.strerror}") from error
