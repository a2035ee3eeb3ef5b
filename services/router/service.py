"""RouterService over grpc.aio: the edges' session streams, and the replica list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc.aio
import structlog

from outrider.errors import (
    OutriderError,
    OverloadedError,
    UnavailableError,
    VocabularyMismatchError,
)
from outrider.rpc import Outbox, incoming
from outrider.telemetry import names
from outrider.telemetry.refusals import RefusalLog
from outrider.telemetry.tracing import span
from outrider.v1 import (
    common_pb2,
    inference_pb2,
    router_pb2,
    router_pb2_grpc,
    tokenizer_pb2,
)
from services.router.explain import Explainer
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica
from services.router.placement.request import Standing
from services.router.relay.switch import Down, RelayedSession, Switch, Up
from services.router.upstream.tokenizers import Tokenized, TokenizerPool

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_VOCABULARIES: Final = 2
"""Of one model while it is replaced: its replicas have the old one and the new one."""


class RouterService(router_pb2_grpc.RouterServiceServicer):
    """Feeds the switch from edge streams and drains its outboxes into them."""

    def __init__(
        self,
        switch: Switch,
        registry: Registry,
        explainer: Explainer,
        standings: Callable[[float], dict[str, Standing]],
        *,
        clock: Callable[[], float],
        buffer_frames: int,
        max_sessions_per_stream: int,
        region: str,
        serving: Callable[[], bool],
    ) -> None:
        self._region = region
        self._serving = serving
        self._switch = switch
        self._registry = registry
        self._explainer = explainer
        self._standings = standings
        self._clock = clock
        self._buffer_frames = buffer_frames
        self._max_sessions_per_stream = max_sessions_per_stream
        self._refused = RefusalLog("streams")

    async def Route(
        self, request_iterator: AsyncIterator[Up], context: Context
    ) -> AsyncIterator[Down]:
        """One edge's stream; ends when the edge does, or with a status when it breaks the
        protocol (MalformedFrameError) or never reads (OverloadedError)."""
        outbox: Outbox[Down] = Outbox(self._buffer_frames, self._max_sessions_per_stream)
        edge = self._switch.attach_edge(outbox)
        reader = asyncio.create_task(self._read(edge, request_iterator, outbox))
        try:
            async for response in outbox:
                yield response
            if outbox.is_overrun:
                raise OverloadedError("This stream is not read: open another and read it.")
            if reader.done():
                reader.result()
        except OutriderError as error:
            self._refused.note(error.reason)
            raise
        finally:
            reader.cancel()
            self._switch.detach_edge(edge, self._clock())

    async def _read(self, edge: int, requests: AsyncIterator[Up], outbox: Outbox[Down]) -> None:
        try:
            async for request in incoming(requests):
                self._switch.from_edge(edge, request, self._clock())
        except BaseException:
            outbox.close()
            raise
        self._switch.half_close_edge(edge)

    async def GetRouter(
        self, request: router_pb2.GetRouterRequest, context: Context
    ) -> router_pb2.GetRouterResponse:
        """Where this router stands, and whether it takes sessions."""
        return router_pb2.GetRouterResponse(region=self._region, serving=self._serving())

    async def Explain(
        self, request: router_pb2.ExplainRequest, context: Context
    ) -> router_pb2.ExplainResponse:
        """Why sessions went where they went, or where one would go now."""
        return await self._explainer.explain(request)

    async def ListReplicas(
        self, request: router_pb2.ListReplicasRequest, context: Context
    ) -> router_pb2.ListReplicasResponse:
        """The replica table as this router sees it."""
        found = (r for r in self._registry if request.region in ("", r.region))
        now = self._clock()
        standings = self._standings(now)
        return router_pb2.ListReplicasResponse(
            replicas=[_to_proto(it, standings[it.name], now) for it in found]
        )


def _to_proto(replica: Replica, standing: Standing, now: float) -> router_pb2.Replica:
    return router_pb2.Replica(
        name=replica.name,
        region=replica.region,
        address=replica.address,
        model=replica.model_name,
        vocabulary_digest=replica.model.vocabulary_digest if replica.model else b"",
        state=router_pb2.ReplicaState.ValueType(replica.state),
        rtt_ms=replica.rtt.smoothed_ms,
        predicted_wait_ms=standing.wait.total_ms,
        sessions=standing.num_sessions,
        min_rtt_ms=replica.rtt.min_ms if replica.rtt.is_measured else 0.0,
        source=replica.source,
        quarantines=replica.health.quarantine.count,
        state_s=now - replica.health.since,
    )


class Intake:
    """Turns the messages of thin clients into ids, beside the relay."""

    def __init__(
        self, pool: TokenizerPool, registry: Registry, *, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, switch: Switch, session: RelayedSession) -> None:
        """Tokenize the session's messages; the switch hears of it."""
        task = asyncio.create_task(self._tokenize(switch, session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up on what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()

    async def _tokenize(self, switch: Switch, session: RelayedSession) -> None:
        if session.open is None:
            return  # it ended before its turn came
        try:
            answer = await self.tokenize(session.open.frame.open)
        except OutriderError as error:
            switch.fail(session, error, self._clock())
        except Exception:
            # A defect fails this session alone, which would wait for its ids for ever.
            _log.exception("tokenization_failed")
            failure = OutriderError("The router failed on this session: see its log.")
            switch.fail(session, failure, self._clock())
        else:
            switch.tokenized(session, answer.ids, answer.vocabulary_digest, self._clock())

    async def tokenize(self, opening: inference_pb2.OpenSession) -> Tokenized:
        """The ids of an open's messages, in a vocabulary that some replica has. The tokenizer is
        told how many fit some replica. Raises what the tokenizers raise."""
        trace = (opening.trace.traceparent, opening.trace.tracestate)
        with span(names.SPAN_TOKENIZE, parent=trace) as opened:
            codecs = self._registry.codecs_of(opening.model)
            request = tokenizer_pb2.EncodeRequest(
                model=opening.model,
                conversation=tokenizer_pb2.Conversation(
                    messages=opening.messages.messages, prefixed=opening.messages.prefixed
                ),
                codecs=map(common_pb2.TokenCodec.ValueType, codecs),
                cache_salt=opening.cache_salt,
                # A token of the context is the reply's; 0: no replica has said how long it is.
                max_prompt_tokens=max(0, self._registry.longest_context(opening.model) - 1),
            )
            request.trace.traceparent, request.trace.tracestate = opened.context
            return await self._in_one_of(request, self._registry.vocabularies_of(opening.model))

    async def _in_one_of(
        self, request: tokenizer_pb2.EncodeRequest, vocabularies: Sequence[bytes]
    ) -> Tokenized:
        """In the first of them that a tokenizer has; while nodes are replaced, not all have all."""
        why: OutriderError | None = None
        for digest in vocabularies[:_MAX_VOCABULARIES]:
            request.vocabulary_digest = digest
            try:
                return await self._pool.encode(request)
            except (VocabularyMismatchError, UnavailableError, OverloadedError) as error:
                is_final = why is None or isinstance(why, VocabularyMismatchError)
                why = error if is_final else why
        if why is not None:
            raise why
        return await self._pool.encode(request)  # no replica is there yet: placement says so
