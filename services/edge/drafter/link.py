"""The edge's way to its drafter: one process, many sessions, nothing that ever waits for it.

Guesses are a gift: whatever happens to the process, the sessions here only stop getting them. A
session whose frames were dropped, or that a dead process knew, is opened anew with all that is
final by then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from services.edge.drafter.child import DRAFTER, Child
from services.edge.drafter.codec import MAX_FRAME_BYTES, decode_up, encode
from services.edge.drafter.core.rates import SOURCE_NAMES
from services.edge.drafter.messages import (
    Close,
    Commit,
    Downward,
    Guess,
    Open,
    Ready,
    Report,
    Unfit,
    Upward,
)
from services.edge.drafter.metrics import DrafterMetrics, DrafterState
from services.edge.drafter.restarts import Restarts
from services.edge.drafter.settings import DrafterSettings
from services.edge.session.events import DrafterReport, OpenDrafter

log = structlog.get_logger()

STUCK_S: Final = 10.0
"""A process that reads nothing for so long, or once it is ready says nothing, is ended."""
MAX_FIRST_GUESS_S: Final = 0.3
"""The longest that anything waits for a reply's first guess, however long the prompt."""
_MAX_UNSENT_BYTES: Final = 1 << 18
_PROMPT_TOKEN_S: Final = 0.0005
"""Of a prompt's token, until the process has said what it takes."""
_FIRST_STEPS_S: Final = 0.010
"""Beside the prompt: the way to the process and back, and a step or two."""
_PATIENCE: Final = 2.0
"""So many times what is expected: other chats' prompts may come first."""


OnGuess: TypeAlias = Callable[[DrafterReport], None]
"""Told the chain of a reply whenever it has grown."""


@dataclass(slots=True)
class _Session:
    """All that it takes to open it again."""

    on_guess: OnGuess
    prompt: tuple[int, ...]
    reply: list[int]
    params: SamplingParams
    ends: tuple[int, ...]
    lead: int
    group: bytes
    is_open: bool = False
    """Whether the process knows of it."""
    is_whole: bool = False
    """Whether it knows everything."""

    def opening(self, number: int) -> Open:
        """What the process has to know."""
        said = self.prompt, tuple(self.reply)
        return Open(number, *said, self.params, self.ends, self.lead, self.group)


class DrafterLink:
    """`run` keeps the process up; the verbs may be called at any time and never fail."""

    def __init__(
        self,
        settings: DrafterSettings,
        vocabulary_size: int,
        metrics: DrafterMetrics,
        command: Sequence[str] = DRAFTER,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`command` starts the process; `pause` waits for so many seconds before the next start."""
        self._settings = settings
        self._pause = pause
        self._command = command
        self._vocabulary_size = vocabulary_size
        self._metrics = metrics
        self._sessions: dict[int, _Session] = {}
        self._unclosed: list[int] = []
        """Sessions that are over, which the process has not been told."""
        self._last_number = 0
        self._child: Child | None = None
        """The process that can be talked to."""
        self._ending: Child | None = None
        """The process that has to be seen off."""
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._task: asyncio.Task[None] | None = None
        self._error: OutriderError | None = None
        self._heard_at = 0.0
        self._prompt_token_s = _PROMPT_TOKEN_S
        self.state = DrafterState.OFF
        self.reason = ""
        """Why there is no drafter, if it is unfit."""

    @property
    def num_sessions(self) -> int:
        """Sessions that want guesses."""
        return len(self._sessions)

    @property
    def is_starting(self) -> bool:
        """Whether its model is being loaded."""
        return self.state is DrafterState.STARTING

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._child.pid if self._child else None

    def first_guess_s(self, num_prompt_tokens: int) -> float | None:
        """How long a reply's first guess may take at most, by how fast prompts were read of late:
        whoever waits for it waits no longer. None while there is no process to guess."""
        if self.state is not DrafterState.READY:
            return None
        return first_guess_limit_s(num_prompt_tokens, self._prompt_token_s)

    # What chats say.

    def open(self, wanted: OpenDrafter, on_guess: OnGuess) -> int:
        """Have guesses made for a reply; the number for the other verbs."""
        self._last_number += 1
        session = _Session(
            on_guess,
            wanted.prompt,
            list(wanted.reply),
            wanted.params,
            tuple(sorted(wanted.ends)),
            wanted.lead,
            wanted.group,
        )
        self._sessions[self._last_number] = session
        self._tell(self._last_number, session)
        return self._last_number

    def commit(self, number: int, ids: Sequence[int], lead: int) -> None:
        """These ids became final, and so many guesses are wanted ahead of them."""
        session = self._sessions.get(number)
        if session is None:
            return
        session.reply += ids
        session.lead = lead
        if session.is_whole:
            session.is_whole = self._say(Commit(number, tuple(ids), lead))

    def close(self, number: int) -> None:
        """No more guesses are wanted."""
        session = self._sessions.pop(number, None)
        if session is not None and session.is_open and not self._say(Close(number)):
            self._unclosed.append(number)

    # The process.

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.create_task(self._run(), name="drafter")

    async def stop(self) -> None:
        """End it. May be called without a start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._ending is not None:
            await self._ending.kill()

    async def _run(self) -> None:
        restarts, loop = Restarts(), asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except Exception:
                # A defect here costs drafts; chats go on without.
                log.exception("drafter failed")
            if self.state is DrafterState.UNFIT:
                return
            self._set(DrafterState.WAITING)
            await self._pause(restarts.ended(loop.time() - began, random.uniform(0.5, 1.0)))

    async def _run_once(self) -> None:
        """Run one process to its end."""
        self._set(DrafterState.STARTING)
        self._decoder, self._error = FrameDecoder(MAX_FRAME_BYTES), None
        try:
            child = await Child.start(
                self._command, self._settings, self._received, _MAX_UNSENT_BYTES
            )
        except OSError as error:
            log.warning("drafter cannot be started", error=str(error))
            return
        self._child = self._ending = child
        try:
            await self._until_gone(child)
        finally:
            self._forget_child()
            status = await child.end()
        self._ending = None
        if self.state is not DrafterState.UNFIT:
            log.warning("drafter ended", status=status, error=str(self._error or ""))

    def _forget_child(self) -> None:
        self._child = None
        self._unclosed.clear()
        for session in self._sessions.values():
            session.is_open = session.is_whole = False

    async def _until_gone(self, child: Child) -> None:
        """Tell what was dropped as soon as there is room, until the process is gone or stuck."""
        pipe, loop = child.pipe, asyncio.get_running_loop()
        while not pipe.closed.is_set():
            await _in_time(pipe.changed)
            pipe.changed.clear()
            if not await _in_time(pipe.writable):
                log.warning("drafter does not read; it is ended", seconds=STUCK_S)
                return
            if self.state is DrafterState.READY and loop.time() - self._heard_at >= STUCK_S:
                log.warning("drafter says nothing; it is ended", seconds=STUCK_S)
                return
            if not pipe.closed.is_set():
                self._tell_all()

    def _set(self, state: DrafterState) -> None:
        self.state = state
        self._metrics.state(state)

    # Frames.

    def _tell_all(self) -> None:
        unclosed, self._unclosed = self._unclosed, []
        self._unclosed = [number for number in unclosed if not self._say(Close(number))]
        for number, session in self._sessions.items():
            if not self._can_say:
                return  # the rest as soon as there is room
            if not session.is_whole:
                self._tell(number, session)

    def _tell(self, number: int, session: _Session) -> None:
        if self.state is DrafterState.READY:
            session.is_whole = self._say(session.opening(number))
            session.is_open |= session.is_whole

    @property
    def _can_say(self) -> bool:
        return self._child is not None and self._child.pipe.is_writable

    def _say(self, message: Downward) -> bool:
        # What cannot be sent is not encoded: prompts are long, and this is the edge's loop.
        if self._child is not None and self._can_say:
            payload = encode(message)
            if len(payload) <= MAX_FRAME_BYTES and self._child.pipe.write(encode_frame(payload)):
                return True
        self._metrics.dropped()
        return False

    def _received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            for payload in self._decoder.feed(data):
                self._take(decode_up(payload))
        except OutriderError as error:
            self._error = error
            if self._child is not None:
                self._child.pipe.close()

    def _take(self, message: Upward) -> None:
        match message:
            case Guess():
                session = self._sessions.get(message.session)
                if session is not None and all(i < self._vocabulary_size for i in message.ids):
                    session.on_guess(heard_of(message))
            case Report():
                self._metrics.report(message)
                if message.prompt_token_us:
                    self._prompt_token_s = message.prompt_token_us / 1e6
            case Ready(model):
                self._set(DrafterState.READY)
                log.info("drafter ready", model=model, pid=self.pid)
                self._tell_all()
            case Unfit(reason):
                self.reason = reason
                self._set(DrafterState.UNFIT)
                log.warning("no drafts by a model", reason=reason)


def first_guess_limit_s(num_prompt_tokens: int, prompt_token_s: float) -> float:
    """How long a first guess may take where a prompt's token takes so long."""
    expected_s = num_prompt_tokens * prompt_token_s + _FIRST_STEPS_S
    return min(_PATIENCE * expected_s, MAX_FIRST_GUESS_S)


async def _in_time(event: asyncio.Event) -> bool:
    """Whether it was set within STUCK_S."""
    try:
        async with asyncio.timeout(STUCK_S):
            await event.wait()
    except TimeoutError:
        return False
    return True


def heard_of(guess: Guess) -> DrafterReport:
    """A guess as a chat's session takes it."""
    sources = tuple(SOURCE_NAMES[source] for source in guess.sources)
    return DrafterReport(guess.base, guess.ids, guess.survival, sources, guess.call_us / 1e6)
