"""Answers requests for replies of all APIs: begins the chats, and sends their events."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from outrider.errors import OutriderError
from outrider.session.client import Failed
from services.edge.access.identity import Identity
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.context import EdgeContext
from services.edge.chat.opening import open_chat
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.http.exchange import ClientLeft, Exchange
from services.edge.http.stream import ChatStream, RunningReply
from services.edge.http.system_lines import LeftOutLines
from services.edge.http.typed_text_table import typist_of
from services.edge.session.events import ChatRequest

log = structlog.get_logger()

_SEED_BITS: Final = 53
_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_UNBUFFERED: Final = {"x-accel-buffering": "no"}
"""nginx and those that follow it pass such an answer on as it comes."""


async def serve_reply(api: ChatApi, exchange: Exchange) -> None:
    """Answer one request. Raises OutriderError for one that cannot be answered, unless its answer
    has begun, and ClientLeft."""
    exchange.frontend.check_draining()
    typist = typist_of(exchange.identity)
    # The body is not kept while the reply is under way: it counts in no budget any more.
    planned = _without_lines(api.plan(await _asked(exchange)), exchange.frontend.left_out)
    exchange.release()
    identity = exchange.admit(planned.user) if planned.user else exchange.identity
    assert identity is not None
    if parts := planned.passed_over.logged:
        request_id = identity.request_id(planned.chats[0].request_id)
        log.info("passed_over", request_id=request_id, parts=parts)
    config, replies = exchange.frontend.config, exchange.frontend.replies
    reply = RunningReply(planned.writer, len(planned.chats), exchange, config.max_unsent_bytes)
    may_return = bool(exchange.headers.get("idempotency-key"))
    watch = asyncio.create_task(exchange.left())
    watch.add_done_callback(lambda task: _left(task, reply, may_return=may_return))
    replies.add(reply)
    try:
        # What the client sent in the same packet is known after this turn of the event loop. Floods
        # reset a request there (CVE-2023-44487), and nothing is to be computed for it.
        await asyncio.sleep(0)
        if watch.done():
            raise ClientLeft
        exchange.has_chats = True
        ahead = exchange.frontend.typed_texts.take(typist, planned.typing_id)
        _begin(reply, planned, identity, exchange.frontend.context, ahead)
        await _send(exchange, reply, planned)
    finally:
        replies.discard(reply)
        reply.leave(may_return=may_return)
        watch.cancel()


async def _asked(exchange: Exchange) -> ApiRequest:
    headers, config = exchange.headers, exchange.frontend.config
    return ApiRequest(
        body=await exchange.body(),
        now_s=int(time.time()),
        random_seed=secrets.randbits(_SEED_BITS),
        max_choices=config.max_choices,
        default_max_tokens=config.default_max_tokens,
        return_metrics=config.return_metrics,
        idempotency_key=headers.get("idempotency-key", ""),
        last_event_id=headers.get("last-event-id", ""),
        typed_seed=partial(exchange.frontend.typed_texts.seed, typist_of(exchange.identity)),
        trace=exchange.trace,
    )


def _without_lines(planned: PlannedReply, left_out: LeftOutLines) -> PlannedReply:
    """The same reply to what the model is to read; its client is told what that leaves out."""
    for beginning in left_out.found(planned.chats[0].messages):
        planned.passed_over.add(f"system:{beginning}")
    chats = (replace(it, messages=left_out.without(it.messages)) for it in planned.chats)
    return replace(planned, chats=tuple(chats))


def _left(task: asyncio.Task[None], reply: RunningReply, *, may_return: bool) -> None:
    """The client has closed its request, unless the watch was given up."""
    if not task.cancelled():
        reply.leave(may_return=may_return)


def _begin(
    reply: RunningReply,
    planned: PlannedReply,
    identity: Identity,
    context: EdgeContext,
    ahead: AnswerAhead | None,
) -> None:
    """Each chat in a time slice of its own: many requests may come at once. `ahead` may hold the
    beginning of an only one."""
    for stream, request in zip(reply.streams, planned.chats, strict=True):
        context.time_slicer.submit(partial(begin_on, stream, request, identity, context, ahead))


def begin_on(
    stream: ChatStream,
    request: ChatRequest,
    identity: Identity,
    context: EdgeContext,
    ahead: AnswerAhead | None = None,
) -> None:
    """Begin a chat on a stream of a reply, unless that is over by now."""
    if stream.is_over:
        if ahead is not None:
            ahead.close()
        return
    try:
        open_chat(stream, request, identity, context, ahead)
    except OutriderError as error:
        context.telemetry.refused(error.reason)
        stream.end(Failed(error.bare()))
    except Exception as failure:
        log.exception("chat_failed")
        why = f"the edge failed in this chat: {type(failure).__name__}"
        stream.end(Failed(OutriderError(why)))


async def _send(exchange: Exchange, reply: RunningReply, planned: PlannedReply) -> None:
    if planned.is_streamed:
        await _send_events(exchange, reply, planned)
    else:
        await reply.ended()
    if reply.is_left:
        raise ClientLeft
    if reply.error is not None:
        if not exchange.has_begun:
            if not (planned.is_streamed and isinstance(reply.error, planned.streamed_errors)):
                raise reply.error
            await _begin_stream(exchange, planned)
        await exchange.write(planned.writer.failed(reply.error), more=False)
        return
    last = planned.writer.whole()
    if not planned.is_streamed:
        headers = exchange.rate_headers() | planned.passed_over.headers
        await exchange.answer(200, last, headers=headers)
        return
    if not exchange.has_begun:
        await _begin_stream(exchange, planned)
    await exchange.write(last, more=False)


async def _send_events(exchange: Exchange, reply: RunningReply, planned: PlannedReply) -> None:
    """Send events as they come. The head waits for the first, or for a place in a region if no
    event comes for long: no success is told before it is one, and an earlier failure gets a status
    of its own."""
    patience_s = exchange.frontend.config.comment_s
    while (events := await reply.next(patience_s)) is not None:
        if not exchange.has_begun:
            if not (events or reply.is_placed):
                continue
            await _begin_stream(exchange, planned)
            reply.begin_pushing(exchange.push)
        await exchange.write(events or planned.keepalive, more=True)


async def _begin_stream(exchange: Exchange, planned: PlannedReply) -> None:
    headers = _UNBUFFERED | exchange.rate_headers() | planned.passed_over.headers
    await exchange.begin(200, _EVENT_STREAM, headers)
