"""The drafter's process: a socket to the edge on one side, the draft model on the other.

One thread: it reads the edge's messages between two calls of the model, and during a call.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.draft_loading import DraftModel, load_draft
from outrider.engines.factory import warm_up
from outrider.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    InsufficientMemoryError,
    InvalidRequestError,
    MalformedFrameError,
    UnknownModelError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from outrider.mirrors.opening import open_mirrors
from outrider.models.catalog import load_catalog, lookup, use
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.learnt import Learnt
from outrider.speculation.learnt_files import LearntKeeper
from outrider.speculation.shipped import shipped_calibrations, shipped_prior
from outrider.telemetry.logs import configure_logging
from outrider.tls import Role, Tls
from services.edge.drafter.calibration import GroupLearning
from services.edge.drafter.contention import (
    ContentionLimits,
    CoreContention,
    CpuTime,
    parse_schedstat,
)
from services.edge.drafter.drafter import Drafter, run
from services.edge.drafter.learnt_binding import learnt_binding
from services.edge.drafter.protocol import (
    MAX_FRAME_BYTES,
    CloseReply,
    CommitTokens,
    DrafterReady,
    DrafterUnusable,
    FromDrafter,
    OpenReply,
    ToDrafter,
    decode_to_drafter,
    encode,
)
from services.edge.drafter.settings import LACKS_MEMORY, DrafterSettings
from services.edge.limits.memory import limit_bytes

log = structlog.get_logger()

UNUSABLE: Final = (
    ConfigError,
    UnknownModelError,
    VocabularyMismatchError,
    ArtifactMissingError,
    ArtifactCorruptError,
    UnsupportedModelError,
)
"""Failures to load that a restart would meet again; all but InsufficientMemoryError, which is one
of them: memory that is taken now may be free when the edge tries again."""
_READ_BYTES: Final = 1 << 16
_MAX_UNSENT_BYTES: Final = 1 << 18
"""While the edge leaves so much unread it is sent nothing new."""
_STATS_INTERVAL_S: Final = 1.0
_CPU_TIME_INTERVAL_S: Final = 0.02
"""Reading the CPU time of some ten threads takes a tenth of a millisecond."""
_WARM_ROWS: Final = 128
_SAVE_S: Final = 1.0
"""Time for a last saving: the edge, which stops, waits a little longer for this process."""


def main(settings: DrafterSettings, connection: socket.socket) -> int:
    """Draft until the edge closes the connection; the process's exit status. Above 0 the edge
    starts another after a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the edge, which ends this
    os.nice(settings.drafter.niceness)
    configure_logging("drafter", settings.log_level)
    channel = Channel(connection)
    try:
        if settings.definitions_file:
            config = Path(settings.definitions_file)
            use(load_catalog(config), config)
        store = _store(settings)
        draft = _load(settings, store)
    except InsufficientMemoryError as error:
        reason = unfit_for_ever(error, limit_bytes())
        if not reason:
            log.warning("draft_model_too_large", error=error.message)
            return LACKS_MEMORY
        channel.send([DrafterUnusable(reason)])
        channel.flush(wait=True)
        return 0
    except UNUSABLE as error:
        channel.send([DrafterUnusable(error.message)])
        channel.flush(wait=True)
        return 0
    log.info("draft_model_loaded", model=draft.name, pool=draft.engine.info.pool_reason)
    spec = lookup(settings.model)
    vocabulary = load_vocabulary(spec, store)
    tokens = vocabulary.tokens_digest
    weights = store.weights_of(spec)
    keeper = LearntKeeper.open(
        Path(settings.learnt_folder),
        learnt_binding(spec, vocabulary.digest, weights, draft=draft.name),
        vocabulary.size,
        settings.learnt,
    )
    learning = GroupLearning(
        shipped_prior(tokens), shipped_calibrations(tokens), restore=keeper.kept.restore
    )
    info = draft.engine.info
    drafter = Drafter(info, settings.limits, draft.calibration, learning, keeper.kept.admit)
    saver = LearntSaver(keeper, learning, settings.learnt.save_interval_s)
    pin_prefixes(drafter, draft.engine, settings.prefixes_file)
    channel.send([DrafterReady(draft.name)])
    contention = CoreContention(ContentionLimits(settings.drafter.max_wait_share))
    Worker(channel, drafter, draft.engine, saver, contention).work()
    saver.finish(monotonic() + _SAVE_S)
    return 0


def pin_prefixes(drafter: Drafter, engine: Engine, file: str) -> None:
    """Compute the static prefixes of the file, and keep their KV. Raises EngineError."""
    prefixes = json.loads(Path(file).read_bytes()) if file else []
    num_tokens = num_left_out = 0
    for ids in prefixes:
        if not drafter.open_prefix(ids, monotonic()):
            num_left_out += 1
            continue
        while not drafter.is_prefix_computed and (call := drafter.schedule(monotonic())):
            began = monotonic()
            rows = run(engine, call)
            drafter.apply(call, rows, monotonic() - began)
        if drafter.pin_prefix():
            num_tokens += len(ids)
        else:
            num_left_out += 1
    if prefixes:
        log.info("draft_prefixes_pinned", tokens=num_tokens, left_out=num_left_out)


def unfit_for_ever(error: InsufficientMemoryError, limit: int) -> str:
    """Why a model can never be loaded if all memory together is `limit` bytes; empty if it may fit
    once other processes free theirs, or if the limit is unknown."""
    if not 0 < limit < error.needed_bytes:
        return ""
    return f"{error.message} (there are {limit >> 20} MiB in all, so no wait helps)"


def _store(settings: DrafterSettings) -> ModelStore:
    root = Path(settings.model_store) if settings.model_store else default_root()
    if not settings.mirrors.sources:
        return ModelStore(root)
    tls = Tls.open(settings.tls, Role.EDGE)
    return ModelStore(root, mirrors=open_mirrors(settings.mirrors, tls))


def _load(settings: DrafterSettings, store: ModelStore) -> DraftModel:
    config = EngineConfig(
        threads=settings.drafter.threads,
        pin_threads=False,
        max_fixed_rows=settings.limits.max_slices,
        prepare_first=True,
        kv_bytes=settings.drafter.kv_bytes,
    )
    draft = load_draft(settings.drafter.model, lookup(settings.model), store, config)
    warm_up(draft.engine, _WARM_ROWS)
    return draft


def cpu_time() -> CpuTime:
    """CPU time of all present threads of this process."""
    times = [CpuTime(0.0, 0.0)]
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it ended meanwhile
            stat = Path("/proc/self/task", thread, "schedstat").read_text()
            times.append(parse_schedstat(stat))
    return CpuTime(sum(it.ran_ms for it in times), sum(it.waited_ms for it in times))


class Channel:
    """Frames to and from the edge: neither direction blocks, and both buffers are bounded."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._unsent = bytearray()
        self.is_open = True

    @property
    def is_clogged(self) -> bool:
        """Whether the edge does not read."""
        return len(self._unsent) > _MAX_UNSENT_BYTES

    def wait(self, timeout_s: float) -> None:
        """Block until data from the edge arrives, or unsent data can be sent."""
        writing = [self._connection] if self._unsent else []
        select.select([self._connection], writing, [], timeout_s)

    def receive(self) -> list[bytes]:
        """Payloads from the edge. Raises MalformedFrameError, FrameTooLargeError."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_open = bool(data)
        return self._decoder.feed(data)

    def send(self, messages: Iterable[FromDrafter]) -> None:
        """Queue messages and send as much as fits."""
        for message in messages:
            self._unsent += encode_frame(encode(message))
        self.flush()

    def flush(self, *, wait: bool = False) -> None:
        """Send what fits; with `wait`, everything, unless the edge closes first."""
        while self._unsent and self.is_open:
            try:
                del self._unsent[: self._connection.send(self._unsent)]
            except BlockingIOError:
                if not wait:
                    return
                self.wait(1.0)
            except OSError:
                self.is_open = False


class LearntSaver:
    """Saves statistics of replies: one group at a time, written by a thread, while the drafter is
    idle, or between two calls if it was not idle for a whole interval."""

    def __init__(self, keeper: LearntKeeper, learning: GroupLearning, interval_s: float) -> None:
        self._keeper = keeper
        self._learning = learning
        self._interval_s = interval_s
        self._due_at = monotonic() + interval_s
        self._copies: Iterator[tuple[bytes, Learnt]] | None = None
        """Copies still to write in the present save."""
        self._writer = ThreadPoolExecutor(1, "learnt")
        self._written: Future[None] | None = None

    def save_due(self, now: float, *, is_idle: bool) -> None:
        """Copy the next group that is due, unless the one before is still being written. `is_idle`:
        nothing is to be computed."""
        if now < self._due_at + (0.0 if is_idle else self._interval_s):
            return
        if self._written is not None and not self._written.done():
            return
        if self._copies is None:
            self._copies = self._keeper.kept.changed(self._learning)
        copy = next(self._copies, None)
        if copy is not None:
            self._written = self._writer.submit(self._keeper.save, [copy])
        else:
            self._copies = None
            self._due_at = now + self._interval_s

    def finish(self, until: float) -> None:
        """Save the remaining groups, as far as time allows."""
        for copy in self._keeper.kept.changed(self._learning):
            if monotonic() >= until:
                break
            self._writer.submit(self._keeper.save, [copy]).result()
        self._writer.shutdown()


class Worker:
    """Feeds a drafter from the channel and runs its calls."""

    def __init__(
        self,
        channel: Channel,
        drafter: Drafter,
        engine: Engine,
        saver: LearntSaver,
        contention: CoreContention,
    ) -> None:
        self._channel = channel
        self._saver = saver
        self._drafter = drafter
        self._engine = engine
        self._contention = contention
        self._stats_at = monotonic() + _STATS_INTERVAL_S
        self._cpu_time_at = monotonic()

    def work(self) -> None:
        """Until the edge closes the connection. Raises EngineError, and MalformedFrameError for an
        edge of another release."""
        while self._channel.is_open:
            self._receive()
            now = monotonic()
            call = self._drafter.schedule(now, is_paused=self._contention.is_paused(now))
            if call is not None:
                began = monotonic()
                rows = run(self._engine, call, self._receive)
                self._drafter.apply(call, rows, monotonic() - began)
                self._pause_if_cores_are_taken()
            self._send()
            if self._channel.is_open:
                self._saver.save_due(monotonic(), is_idle=call is None)
            if call is None and self._channel.is_open:
                self._channel.wait(max(0.0, self._stats_at - monotonic()))

    def _receive(self) -> None:
        now = monotonic()
        for payload in self._channel.receive():
            try:
                self._handle(decode_to_drafter(payload), now)
            except InvalidRequestError as error:
                if isinstance(error, MalformedFrameError):
                    raise
                log.warning("session_not_drafted", error=error.message)

    def _pause_if_cores_are_taken(self) -> None:
        now = monotonic()
        if now < self._cpu_time_at:
            return
        self._cpu_time_at = now + _CPU_TIME_INTERVAL_S
        pause_s = self._contention.observe(cpu_time(), now)
        if pause_s:
            self._drafter.counters.record_pause(pause_s)

    def _handle(self, message: ToDrafter, now: float) -> None:
        match message:
            case OpenReply():
                self._drafter.open(message, now)
            case CommitTokens():
                self._drafter.commit(message, now)
            case CloseReply(session):
                self._drafter.close(session)

    def _send(self) -> None:
        now = monotonic()
        if now >= self._stats_at:
            self._stats_at = now + _STATS_INTERVAL_S
            drafter = self._drafter
            self._channel.send([drafter.counters.stats(drafter.num_sessions, drafter.num_modelled)])
        if self._channel.is_clogged:
            self._channel.flush()
        else:
            self._channel.send(self._drafter.take_updates(now))
