"""VerifyService over the edge's HTTP/2: a chat whose client sends drafts of its own. Credentials,
limits, sessions, failover, resumption and back-pressure are those of every other reply."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Final

import structlog

from outrider.errors import (
    DeadlineError,
    InvalidRequestError,
    MalformedFrameError,
    MediaTypeError,
    OutriderError,
    OverloadedError,
    RateLimitedError,
)
from outrider.session.client import Accepted, Committed, Done
from services.edge.chat.context import EdgeContext
from services.edge.http import grpc_calls, verify_wire
from services.edge.http.exchange import ClientLeft, Exchange
from services.edge.http.replying import begin_on
from services.edge.http.stream import RunningReply
from services.edge.http.verify_wire import Drafted, Opening
from services.edge.limits.quotas import Count, RateLimit, TokenBucket
from services.edge.session.client_drafts import ClientDrafts
from services.edge.session.events import CancelAsked, ClientEvent, DraftsReady

log = structlog.get_logger()

_LINGER_S: Final = 1.0
"""How long a call stays open for a client that goes on writing after the last message: the library
for Python loses the end of a call that ends while it writes (grpc.aio)."""
PATH: Final = "/outrider.v1.VerifyService/Verify"
MAX_AHEAD: Final = 256
"""Drafts of a client that the edge keeps ahead of the final tokens, whatever the session takes."""
MESSAGES: Final = RateLimit(per_s=200.0, burst=400.0)
"""Messages of one call: some five for each commit of a fast replica."""


async def serve_verify(exchange: Exchange) -> None:
    """Serve one call. Raises OutriderError, which ends the call by `fail_call`, and ClientLeft."""
    if not grpc_calls.is_call(exchange.media_type):
        raise MediaTypeError(f"call {PATH} by gRPC, over HTTP/2")
    if not exchange.is_call:
        raise InvalidRequestError("gRPC takes HTTP/2; a proxy in between has to speak it, too")
    exchange.frontend.check_draining()
    quotas, now = exchange.frontend.limits.quotas, asyncio.get_running_loop().time()
    quotas.hold(exchange.address, Count.STREAMS, now)
    try:
        await VerifyCall(exchange).serve()
    finally:
        quotas.release(exchange.address, Count.STREAMS)


async def fail_call(exchange: Exchange, error: OutriderError) -> None:
    """End a call by an error, whether it has begun or not: as its last message, and as its status
    once the client has stopped writing. Raises ClientLeft."""
    if not exchange.has_begun:
        await exchange.begin_call([*grpc_calls.HEAD])
    await exchange.write(grpc_calls.encode(verify_wire.failed(error)), more=True)
    await exchange.discard()
    await exchange.end_call(grpc_calls.status_of(error))


class VerifyCall:
    """One call. It writes the reply of its only chat."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._frontend = exchange.frontend
        self._context: EdgeContext = exchange.frontend.context
        self._loop = asyncio.get_running_loop()
        limits = exchange.frontend.limits.limits
        self._decoder = grpc_calls.MessageDecoder(limits.max_frame_bytes)
        self._budget = exchange.budget
        self._num_held_bytes = 0
        """Taken from the budget."""
        self._messages = TokenBucket(MESSAGES, self._loop.time())
        self._opening: Opening | None = None
        self._drafts = ClientDrafts(MAX_AHEAD)
        self._is_open = False
        """Whether the client was told that the session is under way."""
        self._num_accepted = 0
        self._reply = RunningReply(self, 1, exchange, exchange.frontend.config.max_unsent_bytes)
        self._closed = asyncio.Event()
        """Nothing more comes from the client."""
        self._opened = asyncio.Event()
        """The first message has come, or nothing more will."""

    async def serve(self) -> None:
        """Return when the call has ended well. Raises ClientLeft and OutriderError."""
        reply = self._reply
        self._frontend.replies.add(reply)
        reading = asyncio.create_task(self._read())
        try:
            await self._asked()
            await self._write()
        finally:
            self._frontend.replies.discard(reply)
            self._leave()
            reading.cancel()
            self._budget.give_back(self._num_held_bytes)
            self._record()

    async def _asked(self) -> None:
        """Return once the first message has come. Raises DeadlineError."""
        try:
            async with asyncio.timeout(self._context.request_timeout_s):
                await self._opened.wait()
        except TimeoutError:
            why = "the call was begun but no open came; send it first"
            raise DeadlineError(why) from None

    async def _read(self) -> None:
        try:
            async for piece in self._exchange.pieces():
                for payload in self._decoder.feed(piece):
                    self._take(payload)
                self._hold()
            if self._decoder.num_held:
                raise MalformedFrameError("the call ended inside a message")
            self._closed.set()
            if self._opening is None:
                raise MalformedFrameError("the call ended before an open came; send it first")
            await self._exchange.left()
            self._leave()
        except ClientLeft:
            self._leave()
        except OutriderError as error:
            self._reply.fail(error.bare())
        except Exception as failure:
            log.exception("verify_failed")
            why = f"the edge failed in this call: {type(failure).__name__}"
            self._reply.fail(OutriderError(why))
        finally:
            self._opened.set()
            self._closed.set()

    def _leave(self) -> None:
        opening = self._opening
        self._reply.leave(may_return=opening is not None and opening.may_return)

    def _hold(self) -> None:
        """Raises OverloadedError where there is no memory for a message that is not whole."""
        num_bytes = self._decoder.num_held
        if num_bytes <= self._num_held_bytes:
            self._budget.give_back(self._num_held_bytes - num_bytes)
        elif not self._budget.take(num_bytes - self._num_held_bytes):
            raise OverloadedError(
                "this edge has no memory for more incomplete messages; send fewer at once"
            )
        self._num_held_bytes = num_bytes

    def _take(self, payload: bytes) -> None:
        """A message of the client. Raises OutriderError."""
        if self._reply.is_over:
            return
        now = self._loop.time()
        if not self._messages.take(1, now):
            raise RateLimitedError(
                f"more than {MESSAGES.per_s:g} messages a second came on this call; send more "
                "drafts in each",
                retry_delay_ms=1000,
            )
        exchange = self._exchange
        deadline_ms = grpc_calls.timeout_ms(exchange.headers.get("grpc-timeout", ""))
        asked = verify_wire.read(payload, deadline_ms, exchange.trace)
        if isinstance(asked, Opening):
            if self._opening is not None:
                raise MalformedFrameError("a second open is out of place; a call is one session")
            self._begin(asked)
        elif self._opening is None:
            raise MalformedFrameError("the first message has to be an open")
        elif isinstance(asked, CancelAsked):
            self._feed(asked)
        else:
            self._draft(asked)

    def _begin(self, opening: Opening) -> None:
        exchange = self._exchange
        identity = exchange.admit(opening.user) if opening.user else exchange.identity
        assert identity is not None
        self._opening = opening
        self._drafts = ClientDrafts(MAX_AHEAD, opening.request.resume.upto)
        exchange.has_chats = True
        # In a time slice of its own: many calls may come at once.
        start = partial(begin_on, self._reply.streams[0], opening.request, identity, self._context)
        self._context.time_slicer.submit(start)
        self._opened.set()

    def _draft(self, drafted: Drafted) -> None:
        if not self._is_open:
            self._drafts.num_ignored += len(drafted.ids)
            return
        report = self._drafts.take(drafted.epoch, drafted.base, drafted.ids)
        if report is not None:
            self._feed(DraftsReady(report))

    def _feed(self, item: DraftsReady | CancelAsked) -> None:
        if not self._reply.is_over:
            self._reply.streams[0].handler.feed(item)

    async def _write(self) -> None:
        exchange, reply = self._exchange, self._reply
        while (data := await reply.next()) is not None:
            if not data:
                continue
            if not exchange.has_begun:
                await exchange.begin_call([*grpc_calls.HEAD])
                reply.begin_pushing(exchange.push)
            await exchange.write(data, more=True)
        if reply.is_left:
            raise ClientLeft
        if reply.error is not None:
            raise reply.error
        await self._until_closed()
        await exchange.end_call([*grpc_calls.OK])

    async def _until_closed(self) -> None:
        """Return once the client has said that it writes no more, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._closed.wait()

    def _record(self) -> None:
        drafts = self._drafts
        self._context.telemetry.client_drafts(
            taken=drafts.num_taken, ignored=drafts.num_ignored, accepted=self._num_accepted
        )

    # As the writer of its reply.

    def take(self, index: int, event: ClientEvent) -> bytes:
        """See ReplyWriter.take."""
        if isinstance(event, Committed):
            return grpc_calls.encode(self._verified(event))
        if isinstance(event, Accepted):
            self._is_open = True
            with_ids = self._opening is not None and self._opening.wants_prompt_ids
            told = verify_wire.opened(event, self._context.name, with_ids=with_ids)
            return grpc_calls.encode(told)
        if isinstance(event, Done):
            return grpc_calls.encode(verify_wire.done(event, self._drafts))
        return b""

    def _verified(self, event: Committed) -> bytes:
        accepted = self._drafts.committed(event.ids)
        self._num_accepted += accepted
        return verify_wire.verified(event, accepted, self._drafts.epoch)

    def whole(self) -> bytes:
        """See ReplyWriter.whole: a status follows."""
        return b""

    def failed(self, error: OutriderError) -> bytes:
        """See ReplyWriter.failed: a status follows."""
        return b""
