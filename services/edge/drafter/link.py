"""The edge's link to its drafter process: one process, many sessions, no call that waits for it.

Drafts are optional: whatever happens to the process, sessions only stop getting them. A session
whose frames were dropped, or that a dead process knew, is opened anew with all tokens that are
final by then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from outrider.access.api_keys import is_allowed
from outrider.backoff import Backoff
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from services.edge.drafter.calibration import SOURCE_NAMES
from services.edge.drafter.metrics import DrafterMetrics, DrafterState
from services.edge.drafter.process import DRAFTER, DrafterProcess
from services.edge.drafter.protocol import (
    MAX_FRAME_BYTES,
    CloseReply,
    CommitTokens,
    DrafterReady,
    DrafterStats,
    DrafterUnusable,
    DraftUpdate,
    FromDrafter,
    OpenReply,
    ToDrafter,
    decode_from_drafter,
    encode,
)
from services.edge.drafter.settings import LACKS_MEMORY, DrafterSettings
from services.edge.session.events import DrafterReport, OpenDrafter

log = structlog.get_logger()

FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
MAX_MEMORY_TRIES: Final = 20
"""Starts in a row without enough memory, some eight minutes, after which none follows: what takes
the memory is there to stay, and every start reads the model's file."""
STUCK_S: Final = 10.0
"""A process that reads nothing for so long, or once it is ready sends nothing, is killed."""
MAX_FIRST_DRAFT_S: Final = 0.3
"""Longest wait for a reply's first draft, however long the prompt."""
_MAX_UNSENT_BYTES: Final = 1 << 18
_PROMPT_TOKEN_S: Final = 0.0005
"""Prefill time per prompt token, until the process has measured its own."""
_FIRST_STEPS_S: Final = 0.010
"""Time of a first draft besides prefill: the way to the process and back, and a step or two."""
_PATIENCE: Final = 2.0
"""Factor by which a first draft may exceed its expected time: other chats' prompts may come
first."""


OnDrafts: TypeAlias = Callable[[DrafterReport], None]
"""Called with all drafts of a reply whenever it has new ones."""


@dataclass(slots=True)
class _Session:
    """All that it takes to open it again."""

    on_drafts: OnDrafts
    prompt: tuple[int, ...]
    reply: list[int]
    params: SamplingParams
    ends: tuple[int, ...]
    lead: int
    group: bytes
    group_lasts: bool
    prefixes: tuple[int, ...]
    is_open: bool = False
    """Whether the process knows of it."""
    is_current: bool = False
    """Whether the process knows all of it."""

    def opening(self, number: int) -> OpenReply:
        """The message that opens it."""
        return OpenReply(
            session=number,
            prompt=self.prompt,
            reply=tuple(self.reply),
            params=self.params,
            ends=self.ends,
            lead=self.lead,
            group=self.group,
            group_lasts=self.group_lasts,
            prefixes=self.prefixes,
        )


class DrafterRestarts:
    """How long to wait before a drafter that ended is started again, and when to give up (pure).
    Waits double with every process that ends soon after its start; after one that ran for longer
    than MAX_BACKOFF_S they start at FIRST_BACKOFF_S again."""

    def __init__(self) -> None:
        self._backoff = Backoff(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self._num_lacks = 0
        """Number of processes in a row whose model found too little memory."""

    def ended(
        self, ran_s: float, jitter: float = 1.0, *, lacked_memory: bool = False
    ) -> float | None:
        """A process ended after `ran_s`, or could not be started (0): seconds to wait, or None to
        give up, once MAX_MEMORY_TRIES in a row `lacked_memory`. `jitter`, in (0, 1], shortens the
        wait, so that edges of one host do not start theirs at the same moment."""
        self._num_lacks = self._num_lacks + 1 if lacked_memory else 0
        if self._num_lacks >= MAX_MEMORY_TRIES:
            return None
        if ran_s > MAX_BACKOFF_S:
            self._backoff.reset()
        return self._backoff.next_s() * jitter


class DrafterLink:
    """Keeps the process running; the verbs may be called at any time and never fail."""

    def __init__(
        self,
        settings: DrafterSettings,
        vocabulary_size: int,
        metrics: DrafterMetrics,
        command: Sequence[str] = DRAFTER,
        *,
        prefix_tenants: Sequence[tuple[str, ...]] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`command` starts the process; `sleep` waits for this many seconds before the next start.
        `prefix_tenants`: for each static prefix of the settings, the tenants whose chats may use
        it."""
        self._settings = settings
        self._sleep = sleep
        self._command = command
        self._vocabulary_size = vocabulary_size
        self._prefix_tenants = tuple(prefix_tenants)
        self._metrics = metrics
        self._sessions: dict[int, _Session] = {}
        self._unclosed: list[int] = []
        """Ended sessions that the process does not know to be ended."""
        self._last_number = 0
        self._process: DrafterProcess | None = None
        """The process, while frames can be sent to it."""
        self._ending: DrafterProcess | None = None
        """The process, until it has ended."""
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._error: OutriderError | None = None
        self._received_at = 0.0
        self._prompt_token_s = _PROMPT_TOKEN_S
        self.state = DrafterState.OFF
        self.reason = ""
        """Why no drafter runs, if it is unusable."""

    @property
    def num_sessions(self) -> int:
        """Sessions that want drafts."""
        return len(self._sessions)

    @property
    def is_usable(self) -> bool:
        """Whether it drafts, or will after a while."""
        return self.state not in (DrafterState.OFF, DrafterState.UNUSABLE)

    @property
    def is_starting(self) -> bool:
        """Whether its model is being loaded."""
        return self.state is DrafterState.STARTING

    @property
    def pid(self) -> int | None:
        """Process id of the drafter, while it runs."""
        return self._process.pid if self._process else None

    def first_draft_s(self, num_prompt_tokens: int) -> float | None:
        """How long to wait at most for a reply's first draft, by the recent prefill speed. None
        while no process is ready."""
        if self.state is not DrafterState.READY:
            return None
        return first_draft_limit_s(num_prompt_tokens, self._prompt_token_s)

    # Verbs of chats.

    def open(self, wanted: OpenDrafter, on_drafts: OnDrafts, tenant: str = "") -> int:
        """Have a reply of this tenant's drafted; the number for the other verbs."""
        self._last_number += 1
        session = _Session(
            on_drafts=on_drafts,
            prompt=wanted.prompt,
            reply=list(wanted.reply),
            params=wanted.params,
            ends=tuple(sorted(wanted.ends)),
            lead=wanted.lead,
            group=wanted.group,
            group_lasts=wanted.group_lasts,
            prefixes=tuple(
                number
                for number, tenants in enumerate(self._prefix_tenants)
                if is_allowed(tenant, tenants)
            ),
        )
        self._sessions[self._last_number] = session
        self._send_opening(self._last_number, session)
        return self._last_number

    def commit(self, number: int, ids: Sequence[int], lead: int) -> None:
        """Report ids that became final, and how many drafts are wanted ahead of them."""
        session = self._sessions.get(number)
        if session is None:
            return
        session.reply += ids
        session.lead = lead
        if session.is_current:
            session.is_current = self._send(CommitTokens(number, tuple(ids), lead))

    def close(self, number: int) -> None:
        """No more drafts are wanted."""
        session = self._sessions.pop(number, None)
        if session is not None and session.is_open and not self._send(CloseReply(number)):
            self._unclosed.append(number)

    # The process.

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.create_task(self._run(), name="drafter")

    async def stop(self) -> None:
        """End it. May be called without a start."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._ending is not None:
            await self._ending.kill()

    async def _run(self) -> None:
        restarts = DrafterRestarts()
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            status: int | None = None
            try:
                status = await self._run_once()
            except Exception:
                # A defect here costs drafts; chats go on without.
                log.exception("drafter_failed")
            if self.state is DrafterState.UNUSABLE:
                return
            wait_s = restarts.ended(
                loop.time() - began,
                random.uniform(0.5, 1.0),
                lacked_memory=status == LACKS_MEMORY,
            )
            if wait_s is None:
                self._give_up(
                    f"the draft model found too little memory {MAX_MEMORY_TRIES} times in a row; "
                    "free some, choose a smaller draft, or set drafter.model to none, and start "
                    "the edge again"
                )
                return
            self._set(DrafterState.RESTARTING)
            await self._sleep(wait_s)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._set(DrafterState.UNUSABLE)
        log.error("drafter_given_up", reason=reason)

    async def _run_once(self) -> int | None:
        """Run one process to its end; its exit status, None if it could not be started."""
        self._set(DrafterState.STARTING)
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._error = None
        try:
            process = await DrafterProcess.start(
                self._command, self._settings, self._received, _MAX_UNSENT_BYTES
            )
        except OSError as error:
            log.warning("drafter_not_started", error=str(error))
            return None
        self._process = self._ending = process
        try:
            await self._until_ended(process)
        finally:
            self._process = None
            self._unclosed.clear()
            for session in self._sessions.values():
                session.is_open = session.is_current = False
            is_saving = self._is_stopping and self.state is DrafterState.READY
            status = await (process.finish() if is_saving else process.end())
        self._ending = None
        if self.state is not DrafterState.UNUSABLE:
            log.warning("drafter_ended", status=status, error=str(self._error or ""))
        return status

    async def _until_ended(self, process: DrafterProcess) -> None:
        """Send dropped frames as soon as they fit, until the process has ended or is stuck."""
        pipe, loop = process.pipe, asyncio.get_running_loop()
        while not pipe.closed.is_set():
            await _in_time(pipe.changed)
            pipe.changed.clear()
            if not await _in_time(pipe.writable):
                log.warning("drafter_stuck", seconds=STUCK_S)
                return
            if self.state is DrafterState.READY and loop.time() - self._received_at >= STUCK_S:
                log.warning("drafter_silent", seconds=STUCK_S)
                return
            if not pipe.closed.is_set():
                self._send_missing()

    def _set(self, state: DrafterState) -> None:
        self.state = state
        self._metrics.state(state)

    # Frames.

    def _send_missing(self) -> None:
        """Send everything that the process does not know yet, as far as it fits."""
        unclosed, self._unclosed = self._unclosed, []
        self._unclosed = [number for number in unclosed if not self._send(CloseReply(number))]
        for number, session in self._sessions.items():
            if not self._can_send:
                return  # the rest as soon as there is room
            if not session.is_current:
                self._send_opening(number, session)

    def _send_opening(self, number: int, session: _Session) -> None:
        if self.state is DrafterState.READY:
            session.is_current = self._send(session.opening(number))
            session.is_open |= session.is_current

    @property
    def _can_send(self) -> bool:
        return self._process is not None and self._process.pipe.is_writable

    def _send(self, message: ToDrafter) -> bool:
        # What cannot be sent is not encoded: prompts are long, and this is the edge's event loop.
        if self._process is not None and self._can_send:
            payload = encode(message)
            if len(payload) <= MAX_FRAME_BYTES and self._process.pipe.write(encode_frame(payload)):
                return True
        self._metrics.dropped()
        return False

    def _received(self, data: bytes) -> None:
        self._received_at = asyncio.get_running_loop().time()
        try:
            for payload in self._decoder.feed(data):
                self._handle(decode_from_drafter(payload))
        except OutriderError as error:
            self._error = error
            if self._process is not None:
                self._process.pipe.close()

    def _handle(self, message: FromDrafter) -> None:
        match message:
            case DraftUpdate():
                session = self._sessions.get(message.session)
                if session is not None and all(i < self._vocabulary_size for i in message.ids):
                    session.on_drafts(heard_of(message))
            case DrafterStats():
                self._metrics.record(message)
                if message.prompt_token_us:
                    self._prompt_token_s = message.prompt_token_us / 1e6
            case DrafterReady(model):
                self._set(DrafterState.READY)
                log.info("drafter_ready", model=model, pid=self.pid)
                self._send_missing()
            case DrafterUnusable(reason):
                self.reason = reason
                self._set(DrafterState.UNUSABLE)
                log.warning("drafts_without_model", reason=reason)


def first_draft_limit_s(num_prompt_tokens: int, prompt_token_s: float) -> float:
    """How long to wait for a first draft where prefill takes `prompt_token_s` per token."""
    expected_s = num_prompt_tokens * prompt_token_s + _FIRST_STEPS_S
    return min(_PATIENCE * expected_s, MAX_FIRST_DRAFT_S)


async def _in_time(event: asyncio.Event) -> bool:
    """Whether it was set within STUCK_S."""
    try:
        async with asyncio.timeout(STUCK_S):
            await event.wait()
    except TimeoutError:
        return False
    return True


def heard_of(update: DraftUpdate) -> DrafterReport:
    """An update as a chat's session takes it."""
    sources = tuple(SOURCE_NAMES[source] for source in update.sources)
    return DrafterReport(update.base, update.ids, update.survival, sources, update.call_us / 1e6)
