"""A deterministic turn engine without a model, for tests of a mesh and of the seam.

Each id is a hash of some ids before it and of its position: a reply that another process continues
is the same reply, so that a lost or a doubled token shows. It tells what its prefix cache stores.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from outrider.bounds import NonNegativeFloat, PositiveInt
from outrider.codec.block_hashes import block_hashes
from outrider.engines.turn.base import (
    Ability,
    BlocksRemoved,
    BlocksStored,
    PrefixEvent,
    TurnEngineInfo,
    TurnLoad,
    TurnPiece,
    TurnRequest,
)
from outrider.errors import EngineError, InvalidSamplingError, OverloadedError, ReplicaLostError
from outrider.lru_map import LruMap
from outrider.session.types import FinishReason, ScoredToken, TokenLogprobs

_CONTEXT_IDS = 8
"""An id follows from so many before it, and from their number."""
_MAX_EVENTS = 4096


@dataclass(frozen=True, slots=True)
class FakeTurnOptions:
    """Shape and temper of a FakeTurnEngine."""

    vocabulary_size: int = 64
    max_sessions: PositiveInt = 16
    max_context_tokens: PositiveInt = 2048
    block_tokens: PositiveInt = 16
    num_blocks: PositiveInt = 256
    token_ms: NonNegativeFloat = 0.0
    """Time between two tokens of a reply."""
    piece_tokens: PositiveInt = 1
    """Tokens of a piece."""
    seed: int = 0
    """Another seed is another model."""
    crash_id: int = -1
    """A prompt with this id loses the engine before its first token. Below 0: none does."""


class FakeTurnEngine:
    """See the module's docstring."""

    def __init__(self, options: FakeTurnOptions | None = None) -> None:
        self.options = options or FakeTurnOptions()
        given = self.options
        self.info = TurnEngineInfo(
            name="fake-turns",
            vocabulary_size=given.vocabulary_size,
            max_sessions=given.max_sessions,
            max_context_tokens=given.max_context_tokens,
            abilities=frozenset(
                {Ability.TOP_K, Ability.SEED, Ability.LOGPROBS, Ability.SALT, Ability.PRIORITY}
            ),
            block_tokens=given.block_tokens,
            num_blocks=given.num_blocks,
            tells_prefixes=True,
            version="1",
        )
        self.running: set[int] = set()
        """Numbers of the requests that it works on."""
        self._cached: LruMap[bytes, bytes] = LruMap(
            given.num_blocks, on_drop=lambda name: self._tell(BlocksRemoved((name,)))
        )
        self._lost = asyncio.Event()
        self._watchers: set[asyncio.Queue[PrefixEvent | None]] = set()

    async def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        """TurnEngine.reply."""
        self._check(request)
        self.running.add(request.number)
        try:
            ids, left = list(request.ids), request.max_tokens
            cached: int | None = self._store(request)
            while True:
                if self.options.crash_id in request.ids:
                    self.lose()
                await self._pause()
                new, finish = self._next(ids, left, request.end_ids)
                ids += new
                left -= len(new)
                wanted = request.sampling.num_logprobs >= 0
                logprobs = tuple(TokenLogprobs(ScoredToken(it, 0.0), ()) for it in new)
                yield TurnPiece(tuple(new), finish, logprobs if wanted else (), cached)
                cached = None
                if finish is not None:
                    return
        finally:
            self.running.discard(request.number)

    async def load(self) -> TurnLoad:
        """TurnEngine.load."""
        self._raise_if_lost()
        return TurnLoad(len(self.running), 0, self.options.num_blocks - len(self._cached))

    async def prefix_events(self) -> AsyncIterator[PrefixEvent]:
        """TurnEngine.prefix_events. Who does not read loses the stream."""
        queue: asyncio.Queue[PrefixEvent | None] = asyncio.Queue(_MAX_EVENTS)
        self._watchers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.discard(queue)

    def lose(self) -> None:
        """As if the server behind the engine had died."""
        self._lost.set()
        for queue in self._watchers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    async def close(self) -> None:
        """TurnEngine.close."""
        self.lose()

    def _check(self, request: TurnRequest) -> None:
        self._raise_if_lost()
        if len(self.running) >= self.info.max_sessions:
            raise OverloadedError("the fake engine is full; come back later", retry_delay_ms=100)
        if request.sampling.grammar is not None:
            raise InvalidSamplingError("the fake engine has no grammars; leave the grammar out")
        if not request.ids or max(request.ids) >= self.info.vocabulary_size:
            raise EngineError("the ids of a request are not of the fake engine's vocabulary")

    def _raise_if_lost(self) -> None:
        if self._lost.is_set():
            raise ReplicaLostError("the fake engine is gone; open the session on another replica")

    async def _pause(self) -> None:
        """Until the next piece is written. Raises ReplicaLostError."""
        delay_s = self.options.token_ms * self.options.piece_tokens / 1e3
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._lost.wait()
        await asyncio.sleep(0)
        self._raise_if_lost()

    def _next(
        self, ids: list[int], left: int, end_ids: tuple[int, ...]
    ) -> tuple[list[int], FinishReason | None]:
        new: list[int] = []
        while len(new) < self.options.piece_tokens:
            new.append(self.next_id([*ids[-_CONTEXT_IDS:], *new], len(ids) + len(new)))
            if new[-1] in end_ids:
                return new, FinishReason.STOP
            if len(new) == left or len(ids) + len(new) >= self.info.max_context_tokens:
                return new, FinishReason.LENGTH
        return new, None

    def next_id(self, ids: list[int], length: int) -> int:
        """The id behind so many, of which `ids` are the last."""
        context = struct.pack(f"<{_CONTEXT_IDS + 2}q", *_padded(ids), length, self.options.seed)
        digest = blake2b(context, digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.options.vocabulary_size

    def _store(self, request: TurnRequest) -> int:
        """Cache the request's full blocks; returns how many leading ids were cached."""
        size = self.options.block_tokens
        names = list(block_hashes(request.ids, size, request.salt))[: self.options.num_blocks]
        num_cached = next((n for n, it in enumerate(names) if it not in self._cached), len(names))
        for index, name in enumerate(names):
            if index < num_cached:
                continue
            self._cached.put(name, name)
            parent = names[index - 1] if index else b""
            ids = request.ids[index * size : (index + 1) * size]
            self._tell(BlocksStored(request.salt, parent, (name,), ids))
        for name in reversed(names):
            self._cached.get(name)  # the first block of a prompt is the last to go
        return num_cached * size

    def _tell(self, event: PrefixEvent) -> None:
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(event)


def _padded(ids: list[int]) -> list[int]:
    last = ids[-_CONTEXT_IDS:]
    return [-1] * (_CONTEXT_IDS - len(last)) + last
