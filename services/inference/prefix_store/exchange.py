"""Loads what another replica or the store has of a session's beginning while the engine computes,
and saves prompts' beginnings that come more than once.

All of it runs beside the sessions: no session waits for a store or a replica, nothing here touches
the engine, and packing and unpacking have a thread of their own. What comes is believed only if it
names this very engine's fingerprint and is of the ids asked for, and out of the store only if it
opens with the operator's secret.

The other replica is asked first, as it has what a session leaves behind there; what it does not
have or send is looked for in the store.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

import structlog

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.codec.kv import KvHeader, KvLayout, Payload, decode_frame, encode_frame
from outrider.errors import MalformedFrameError
from outrider.lru_map import LruMap
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from services.inference.kv_peers.telemetry import PEER_BLOCKS
from services.inference.kv_transfer import LoadBlocks
from services.inference.prefix_store.planning import LoadPlanner
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import PrefixStore
from services.inference.scheduler.types import KvHolder, OpenRequest

TRANSFERRED: Final = Family(
    "outrider_kv_transferred_bytes",
    "Bytes of KV that went to the prefix store (direction: save) or came from it (load), came from "
    "other replicas (fetch) or went to them (serve), packed.",
)
TRANSFER_SECONDS: Final = Family(
    "outrider_kv_transfer_seconds",
    "Time to fetch and unpack, or to pack and store, some blocks of KV; direction as of the bytes.",
)
STORE_FAILURES: Final = Family(
    "outrider_kv_store_failures",
    "Requests to the prefix store that failed: slow, full, gone, or refused.",
)
STORE_BLOCKS: Final = Family(
    "outrider_kv_store_blocks",
    "Blocks of prompts, by what became of them: loaded, missing, refused (damaged, or not this "
    "model's), late (the engine was sooner, or too much waited for it), saved, failed.",
)
TRANSFER_BOUNDARIES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_CHUNK_BLOCKS: Final = 4
"""Blocks of one round trip: a few megabytes, so that what has arrived is of use at once."""
_MAX_LOADS: Final = 8
"""Prompts that are loaded at once; others are computed."""
_MAX_SAVES: Final = 16
"""Prompts that wait to be saved, or are; others are not."""
_MAX_NAMES: Final = 65_536
"""Names that are remembered: as seen once, as stored, and as unusable."""
_MAX_KNOWN_S: Final = 900.0
"""What is known to be stored is asked for again after so long: a store forgets when it is started
again, or is full."""

_log = structlog.get_logger()


class Peers(Protocol):
    """Other replicas (kv_peers.fetching.KvPeers)."""

    min_tokens: int
    num_failures: int
    latest: LoadPlanner

    def planner(self, holder: KvHolder) -> LoadPlanner: ...

    def fetch(
        self, holder: KvHolder, hashes: Sequence[bytes]
    ) -> AsyncGenerator[tuple[int, bytes], None]: ...

    def lied(self, holder: KvHolder) -> None: ...

    async def close(self) -> None: ...


class KvBlocks(Protocol):
    """The model thread, seen from the event loop (runner.ModelRunner)."""

    def load_blocks(self, command: LoadBlocks) -> bool:
        """False: it was dropped."""
        ...

    async def export_blocks(
        self, ids: tuple[int, ...], salt: bytes, indices: tuple[int, ...]
    ) -> list[tuple[int, bytes]]: ...


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """Whose KV it is."""

    layout: KvLayout
    fingerprint: bytes
    vocabulary_digest: bytes

    def header(self, parent_hash: bytes, ids: tuple[int, ...]) -> KvHeader:
        """Of an exact frame of the block with these ids, behind that one."""
        return KvHeader(
            payload=Payload.EXACT,
            layout=self.layout,
            fingerprint=self.fingerprint,
            vocabulary_digest=self.vocabulary_digest,
            parent_hash=parent_hash,
            ids=ids,
        )


@dataclass(slots=True, eq=False)
class _Prompt:
    """The full blocks of a session's prompt and of the reply that it resumes after."""

    session_id: int
    ids: tuple[int, ...]
    salt: bytes
    hashes: list[bytes]
    names: list[bytes]
    """In the store."""
    num_kept: int
    """Leading blocks that the store may have, and may be given."""
    is_computed: bool = False
    """Whether its first token is there, or it has ended: what arrives now is late."""
    fetching: asyncio.Task[None] | None = None
    """While another replica sends blocks."""

    def end(self) -> None:
        """Nothing that comes is of use any more: who sends it is told at once."""
        self.is_computed = True
        if self.fetching is not None:
            self.fetching.cancel()


class TransferCounts(NamedTuple):
    """Since the replica started."""

    num_bytes: int = 0
    """To the store and from it, packed."""
    num_failures: int = 0
    """Requests to the store that failed."""
    num_peer_bytes: int = 0
    """To other replicas and from them, packed."""
    num_peer_failures: int = 0
    """Requests to other replicas that failed."""
    peer_block_ms: float = 0.0
    """What a block took lately to come from another replica; 0: none came."""
    peer_first_ms: float = 0.0
    """Until the first bytes came."""


class Names:
    """The latest names, least recently added forgotten."""

    def __init__(
        self,
        max_names: int = _MAX_NAMES,
        *,
        lasts_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A name is there for `lasts_s` after it was last added."""
        self._lasts_s = lasts_s
        self._clock = clock
        self._names: LruMap[bytes, float] = LruMap(max_names)
        """When each was added last."""

    def __contains__(self, name: bytes) -> bool:
        added_at = self._names.peek(name)
        return added_at is not None and self._clock() - added_at < self._lasts_s

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: bytes) -> bool:
        """Whether it was there already."""
        was_there = name in self
        self._names.put(name, self._clock())
        return was_there

    def discard(self, name: bytes) -> None:
        self._names.pop(name)


class PrefixExchange:
    """Between the sessions of a replica, its model thread, the store and other replicas. The event
    loop's."""

    def __init__(
        self,
        store: PrefixStore | None,
        sealer: Sealer | None,
        identity: KvIdentity,
        model: KvBlocks,
        metrics: Metrics,
        *,
        min_tokens: int,
        max_tokens: int,
        ttl_s: float = math.inf,
        peers: Peers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of prompts with at least `min_tokens` tokens in full blocks, the first `max_tokens` are
        loaded from the store and saved there, where entries expire `ttl_s` after they were last
        asked for. A store comes with a sealer."""
        self._store = store
        self._sealer = sealer
        self._peers = peers
        self._peer_blocks = metrics.counter(PEER_BLOCKS)
        self._num_peer_bytes = 0
        self._identity = identity
        self._model = model
        self._blocks = metrics.counter(STORE_BLOCKS)
        self._bytes = metrics.counter(TRANSFERRED)
        self._seconds = metrics.histogram(TRANSFER_SECONDS, TRANSFER_BOUNDARIES_S)
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._clock = clock
        self._planner = LoadPlanner()
        self._prompts: dict[int, _Prompt] = {}
        """By session id, until the session's first token."""
        self._seen = Names()
        """Of blocks that one prompt had: another one with the same makes them worth saving."""
        self._stored = Names(lasts_s=min(ttl_s / 2, _MAX_KNOWN_S), clock=clock)
        self._unusable = Names()
        """Of entries that were there, and refused or nothing when they were fetched: they are
        written anew whatever the store says that it has."""
        self._fetching: set[bytes] = set()
        self._loads: set[asyncio.Task[None]] = set()
        self._saves: set[asyncio.Task[None]] = set()
        self._saving = asyncio.Lock()
        self._num_bytes = 0
        self._num_failures = 0
        self._failures = metrics.counter(STORE_FAILURES)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kv")

    @property
    def num_transfers(self) -> int:
        """Prompts that are being loaded or saved, or wait to be."""
        return len(self._loads) + len(self._saves)

    @property
    def counts(self) -> TransferCounts:
        """What was moved, and how often that failed."""
        if self._peers is None:
            return TransferCounts(self._num_bytes, self._num_failures)
        cost = self._peers.latest.cost
        return TransferCounts(
            self._num_bytes,
            self._num_failures,
            self._num_peer_bytes,
            self._peers.num_failures,
            cost.block_ms,
            cost.fixed_ms,
        )

    def opened(self, request: OpenRequest, cached_tokens: int, compute_token_ms: float) -> None:
        """A session is in the queue, or computes; the first `cached_tokens` are there already, and
        the engine takes so long for one of the others."""
        prompt = self._prompt(request)
        if prompt is not None:
            shared = request.shared_prefix_tokens // self._identity.layout.block_tokens
            for name in prompt.names[:shared]:  # it came to another replica before
                self._seen.add(name)
            self._opened(request, prompt, cached_tokens, compute_token_ms)

    def warming_up(self, request: OpenRequest, cached_tokens: int, compute_token_ms: float) -> None:
        """As opened(), for a static prefix. It is saved at once: it comes again, with every
        start."""
        prompt = self._prompt(request)
        if prompt is not None:
            for name in prompt.names[: prompt.num_kept]:
                self._seen.add(name)
            self._opened(request, prompt, cached_tokens, compute_token_ms)

    def _opened(
        self, request: OpenRequest, prompt: _Prompt, cached_tokens: int, compute_token_ms: float
    ) -> None:
        self._prompts[request.session_id] = prompt
        block_tokens = self._identity.layout.block_tokens
        first = cached_tokens // block_tokens
        # The engine always computes the last token itself, so no block ends with it.
        num_tokens = len(request.prompt) + len(request.resume)
        last = min(len(prompt.hashes), (num_tokens - 1) // block_tokens)
        block_ms = compute_token_ms * block_tokens
        holder = self._worth_asking(request.kv_holder, cached_tokens)
        num_stored = self._planner.plan(min(last, prompt.num_kept) - first, block_ms)
        if (holder or num_stored) and len(self._loads) < _MAX_LOADS:
            least = min(num_stored, 1)
            self._start(self._loads, self._load(prompt, first, last, block_ms, holder, least))

    def _worth_asking(self, holder: KvHolder | None, cached_tokens: int) -> KvHolder | None:
        """None where too few tokens are in question."""
        if holder is None or self._peers is None:
            return None
        num_missing = holder.num_tokens - cached_tokens
        return holder if num_missing >= self._peers.min_tokens else None

    def first_token(self, session_id: int) -> None:
        """The prompt is computed."""
        prompt = self._prompts.pop(session_id, None)
        if prompt is None:
            return
        prompt.end()
        again = [self._seen.add(name) for name in prompt.names[: prompt.num_kept]]
        # A block is of use behind those before it alone, so those that came before are the first.
        worth = [index for index, was_there in enumerate(again) if was_there]
        wanted = tuple(index for index in worth if prompt.names[index] not in self._stored)
        if wanted and len(self._saves) < _MAX_SAVES:
            self._start(self._saves, self._save(prompt, wanted))

    def ended(self, session_id: int) -> None:
        """The session is over, whether it had a token or not."""
        prompt = self._prompts.pop(session_id, None)
        if prompt is not None:
            prompt.end()

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [*self._loads, *self._saves]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._peers is not None:
            await self._peers.close()
        if self._store is not None:
            await self._store.close()

    def _prompt(self, request: OpenRequest) -> _Prompt | None:
        """None where neither the store nor another replica is asked."""
        block_tokens = self._identity.layout.block_tokens
        num_kept = min(len(request.prompt), self._max_tokens) // block_tokens
        # Nothing of a group would be found again whose name is another one after a restart.
        may_keep = self._store is not None and (request.group_lasts or request.warms_up)
        if not may_keep or num_kept * block_tokens < self._min_tokens:
            num_kept = 0
        has_holder = self._peers is not None and request.kv_holder is not None
        if not num_kept and not has_holder:
            return None
        ids = (*request.prompt, *request.resume) if has_holder else request.prompt
        num_blocks = len(ids) // block_tokens if has_holder else num_kept
        ids = ids[: num_blocks * block_tokens]
        hashes = list(block_hashes(ids, block_tokens, request.cache_salt))
        names = [] if self._sealer is None else self._sealer.names(hashes[:num_kept])
        salt = request.cache_salt
        return _Prompt(request.session_id, ids, salt, hashes, names, num_kept)

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_logged(work))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # Loading, from the last block backwards.

    async def _load(
        self,
        prompt: _Prompt,
        first: int,
        last: int,
        block_ms: float,
        holder: KvHolder | None,
        least: int,
    ) -> None:
        """Blocks `first` to `last`, of which the engine computes one in `block_ms`; out of the
        store at least `least`, if it has them."""
        came: set[int] = set()
        if holder is not None:
            block_tokens = self._identity.layout.block_tokens
            last_held = min(last, holder.num_tokens // block_tokens)
            came = await self._load_from_peer(prompt, first, last_held, block_ms, holder)
        last = min(last, prompt.num_kept)
        while last > first and last - 1 in came:
            last -= 1
        if last > first and not prompt.is_computed:
            await self._load_from_store(prompt, first, last, block_ms, came, least)

    async def _load_from_peer(
        self, prompt: _Prompt, first: int, last: int, block_ms: float, holder: KvHolder
    ) -> set[int]:
        """The blocks that came."""
        assert self._peers is not None
        came: set[int] = set()
        num_dropped = 0
        count = self._peers.planner(holder).plan(last - first, block_ms)
        # What another session fetches now is published for both once the engine has come so far.
        wanted = [
            index
            for index in range(last - 1, last - 1 - count, -1)
            if prompt.hashes[index] not in self._fetching
        ]
        if not wanted:
            return came
        hashes = [prompt.hashes[index] for index in wanted]
        self._fetching.update(hashes)
        began = self._clock()
        loop = asyncio.get_running_loop()
        prompt.fetching = asyncio.current_task()
        try:
            async with aclosing(self._peers.fetch(holder, hashes)) as frames:
                async for place, frame in frames:
                    index = wanted[place]
                    self._num_peer_bytes += len(frame)
                    self._bytes.add(len(frame), {"direction": "fetch"})
                    block = await loop.run_in_executor(
                        self._threads, self._open_frame, prompt, index, frame
                    )
                    if block is None:
                        self._count_peer("refused", 1)
                        self._peers.lied(holder)
                        break
                    if prompt.is_computed:
                        break
                    loaded = LoadBlocks(prompt.session_id, ((index, block),), from_peer=True)
                    if self._model.load_blocks(loaded):
                        came.add(index)
                    else:
                        num_dropped += 1
        finally:
            prompt.fetching = None
            self._fetching.difference_update(hashes)
            if came:
                self._seconds.record(self._clock() - began, {"direction": "fetch"})
            self._count_peer("loaded", len(came))
            num_left = len(wanted) - len(came) - num_dropped
            self._count_peer("late", num_dropped)
            self._count_peer("late" if prompt.is_computed else "missing", num_left)
        return came

    async def _load_from_store(
        self,
        prompt: _Prompt,
        first: int,
        last: int,
        block_ms: float,
        came: set[int],
        least: int,
    ) -> None:
        """Without those that `came` already."""
        assert self._store is not None
        began = self._clock()
        present = await self._store.present(prompt.names[first:last])
        self._count_failures()
        if present is None:
            self._count("missing", last - first)
            return
        self._planner.observe_round_trip((self._clock() - began) * 1e3)
        self._note_stored(prompt.names[first:last], present)
        there = [index for index, is_there in enumerate(present, first) if is_there]
        self._count("missing", last - first - len(there))
        there = [index for index in there if index not in came]
        count = max(least, self._planner.num_to_load(last - first, block_ms))
        wanted = iter(reversed(there[-count:] if count else []))
        while chunk := list(islice(wanted, _CHUNK_BLOCKS)):
            if prompt.is_computed:
                self._count("late", len(chunk))
            else:
                await self._load_chunk(prompt, chunk)

    async def _load_chunk(self, prompt: _Prompt, chunk: Sequence[int]) -> None:
        assert self._store is not None
        # What another session fetches now is published for both once the engine has come so far.
        indices = [index for index in chunk if prompt.hashes[index] not in self._fetching]
        names = [prompt.names[index] for index in indices]
        if not names:
            return
        hashes = [prompt.hashes[index] for index in indices]
        self._fetching.update(hashes)
        began = self._clock()
        try:
            answer = await self._store.fetch(names)
            values = [None] * len(names) if answer is None else answer
            loop = asyncio.get_running_loop()
            blocks = await loop.run_in_executor(
                self._threads, self._unpack, prompt, indices, values
            )
        finally:
            self._fetching.difference_update(hashes)
        took_s = self._clock() - began
        self._planner.observe_load(len(names), took_s * 1e3)
        self._seconds.record(took_s, {"direction": "load"})
        self._moved("load", sum(len(value or b"") for value in values))
        usable = {index for index, _ in blocks}
        for index, name in zip(indices, names, strict=True):
            if index in usable:
                self._unusable.discard(name)
                continue
            self._stored.discard(name)
            if answer is not None:
                self._unusable.add(name)
        num_found = sum(value is not None for value in values)
        self._count("missing", len(values) - num_found)
        self._count("refused", num_found - len(blocks))
        loaded = LoadBlocks(prompt.session_id, tuple(blocks))
        is_taken = blocks and not prompt.is_computed and self._model.load_blocks(loaded)
        self._count("loaded" if is_taken else "late", len(blocks))

    def _unpack(
        self, prompt: _Prompt, indices: Sequence[int], values: Sequence[bytes | None]
    ) -> list[tuple[int, bytes]]:
        """In the thread: the blocks whose values are what they should be."""
        assert self._sealer is not None
        blocks = []
        for index, value in zip(indices, values, strict=True):
            frame = None if value is None else self._sealer.open(prompt.names[index], value)
            block = None if frame is None else self._open_frame(prompt, index, frame)
            if block is not None:
                blocks.append((index, block))
        return blocks

    def _open_frame(self, prompt: _Prompt, index: int, frame: bytes) -> bytes | None:
        """In the thread: the block, if the frame is what it should be."""
        try:
            opened = decode_frame(frame)
            if opened.header == self._header(prompt, index):
                (block,) = opened.blocks()
                return block
        except MalformedFrameError as error:
            _log.warning("kv_frame_refused", reason=error.message)
        return None

    def _header(self, prompt: _Prompt, index: int) -> KvHeader:
        block_tokens = self._identity.layout.block_tokens
        begin = index * block_tokens
        parent = prompt.hashes[index - 1] if index else root_hash(prompt.salt)
        return self._identity.header(parent, prompt.ids[begin : begin + block_tokens])

    # Saving, from the first block on, one prompt at a time.

    async def _save(self, prompt: _Prompt, wanted: Sequence[int]) -> None:
        assert self._store is not None
        async with self._saving:
            names = [prompt.names[index] for index in wanted]
            present = await self._store.present(names)
            if present is None:
                self._count_failures()
                self._count("failed", len(names))
                return
            self._note_stored(names, present)
            left = iter([i for i in wanted if prompt.names[i] not in self._stored])
            while chunk := tuple(islice(left, _CHUNK_BLOCKS)):
                await self._save_chunk(prompt, chunk)

    def _note_stored(self, names: Sequence[bytes], present: Sequence[bool]) -> None:
        """What the store has, and what it has no more, or to no use."""
        for name, is_there in zip(names, present, strict=True):
            if is_there and name not in self._unusable:
                self._stored.add(name)
            else:
                self._stored.discard(name)

    async def _save_chunk(self, prompt: _Prompt, chunk: tuple[int, ...]) -> None:
        assert self._store is not None
        blocks = await self._model.export_blocks(prompt.ids, prompt.salt, chunk)
        if not blocks:
            return
        began = self._clock()
        loop = asyncio.get_running_loop()
        entries = await loop.run_in_executor(self._threads, self._pack, prompt, blocks)
        is_stored = await self._store.put(entries)
        self._seconds.record(self._clock() - began, {"direction": "save"})
        self._count("saved" if is_stored else "failed", len(entries))
        self._count_failures()
        if is_stored:
            self._moved("save", sum(len(value) for _, value in entries))
            for name, _ in entries:
                self._stored.add(name)
                self._unusable.discard(name)

    def _pack(
        self, prompt: _Prompt, blocks: Sequence[tuple[int, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """In the thread: names and values."""
        assert self._sealer is not None
        entries = []
        for index, block in blocks:
            name = prompt.names[index]
            frame = encode_frame(self._header(prompt, index), [block])
            entries.append((name, self._sealer.seal(name, frame)))
        return entries

    def _moved(self, direction: str, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._bytes.add(num_bytes, {"direction": direction})
        self._count_failures()

    def _count_failures(self) -> None:
        assert self._store is not None
        new = self._store.num_failures - self._num_failures
        if new:
            self._num_failures += new
            self._failures.add(new)

    def _count_peer(self, what: str, num_blocks: int) -> None:
        if num_blocks:
            self._peer_blocks.add(num_blocks, {"result": what})

    def _count(self, what: str, num_blocks: int) -> None:
        if num_blocks:
            self._blocks.add(num_blocks, {"result": what})


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """A defect costs a transfer, and is logged."""
    try:
        await work
    except Exception:
        _log.exception("kv_transfer_failed")
