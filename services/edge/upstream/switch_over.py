"""Whether a session's commits come through its router or straight from its replica, and the way
from one to the other: no token twice, none lost. Pure; frames are opaque here.

The router opens the session and carries it. Where it also says where the replica is, the edge
attaches the session to a stream of its own to that replica. The replica then says through the
router which token is the last one that comes that way, and sends the commits behind it on the other
stream. These may be there sooner than the last ones through the router, so they are held until the
replica's word has come, which is behind all of those. The end of a session always comes through its
router, and is held until the commits that it counts are there.

docs/decisions/0026-commits-past-the-router.md has the reasons.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final, Generic, NamedTuple, TypeVar

FrameT = TypeVar("FrameT")

MAX_HELD: Final = 256
"""Commits held of one session until the last one through its router is there."""


class PathState(IntEnum):
    """How a session's commits come."""

    RELAYED = 0
    """Through its router."""
    SWITCHING = auto()
    """Through its router; the replica was asked for the others."""
    DIRECT = auto()
    """From its replica."""
    ENDING = auto()
    """From its replica, and its end is known: some of the tokens that it counts are missing."""
    BACK = auto()
    """Not at all: the stream from its replica is lost. Its router will say what became of it."""
    OVER = auto()
    """It has ended, or is to be opened again."""


class PathInput(IntEnum):
    """What can happen."""

    # From its router.
    GRANTED = 0
    """The replica may be asked."""
    RELAYED_COMMIT = auto()
    SWITCHED = auto()
    """The replica has sent the last commit that comes this way."""
    DONE = auto()
    """It ended, and all of its tokens are here."""
    EARLY_DONE = auto()
    """It ended, and some of its tokens are not here."""
    ERROR = auto()
    MOVED = auto()
    """Another replica has it."""
    # From its replica.
    DIRECT_COMMIT = auto()
    LAST_COMMIT = auto()
    """The tokens that its end counts are all here now."""
    REFUSED = auto()
    """The replica does not send them."""
    LOST = auto()
    """The stream broke, or never was."""
    # From this edge.
    OVERFULL = auto()
    """As many commits are held as may be."""
    NO_VERDICT = auto()
    """Its router did not say in time what became of it."""


class PathAction(IntEnum):
    """What to do."""

    DROP = 0
    """Nothing, with the frame if there is one."""
    PASS = auto()
    """Pass the frame on."""
    HOLD = auto()
    """Keep the frame."""
    ATTACH = auto()
    """Ask the replica."""
    DETACH = auto()
    """Take nothing more from the replica."""
    PASS_DETACHED = auto()
    """Take nothing more from the replica, and pass the frame on."""
    RELEASE = auto()
    """Pass on what was held."""
    PASS_WITH_END = auto()
    """Pass the frame on, and the end that was held behind it."""
    AWAIT = auto()
    """Give the router some time to say what became of it."""
    LOSE = auto()
    """It is lost to this edge, which opens it again behind the tokens that it has."""


_S, _I, _A = PathState, PathInput, PathAction
_Row = dict[PathInput, tuple[PathState, PathAction]]


def _row(state: PathState, row: _Row) -> _Row:
    """What is not said changes nothing."""
    return {event: row.get(event, (state, _A.DROP)) for event in PathInput}


TRANSITIONS: Final[dict[PathState, _Row]] = {
    _S.RELAYED: _row(
        _S.RELAYED,
        {
            _I.GRANTED: (_S.SWITCHING, _A.ATTACH),
            _I.RELAYED_COMMIT: (_S.RELAYED, _A.PASS),
            # The replica took it for attached after this edge had given that up.
            _I.SWITCHED: (_S.OVER, _A.LOSE),
            _I.DONE: (_S.OVER, _A.PASS),
            _I.EARLY_DONE: (_S.OVER, _A.PASS),
            _I.ERROR: (_S.OVER, _A.PASS),
            _I.MOVED: (_S.RELAYED, _A.PASS),
        },
    ),
    _S.SWITCHING: _row(
        _S.SWITCHING,
        {
            _I.RELAYED_COMMIT: (_S.SWITCHING, _A.PASS),
            _I.SWITCHED: (_S.DIRECT, _A.RELEASE),
            _I.DONE: (_S.OVER, _A.PASS_DETACHED),
            _I.EARLY_DONE: (_S.OVER, _A.PASS_DETACHED),
            _I.ERROR: (_S.OVER, _A.PASS_DETACHED),
            # The router had not heard of the switch: it has all the tokens that this edge used.
            _I.MOVED: (_S.RELAYED, _A.PASS_DETACHED),
            _I.DIRECT_COMMIT: (_S.SWITCHING, _A.HOLD),
            _I.REFUSED: (_S.RELAYED, _A.DETACH),
            _I.LOST: (_S.RELAYED, _A.DETACH),
            _I.OVERFULL: (_S.RELAYED, _A.DETACH),
        },
    ),
    _S.DIRECT: _row(
        _S.DIRECT,
        {
            _I.RELAYED_COMMIT: (_S.OVER, _A.LOSE),
            _I.DONE: (_S.OVER, _A.PASS_DETACHED),
            _I.EARLY_DONE: (_S.ENDING, _A.HOLD),
            _I.ERROR: (_S.OVER, _A.PASS_DETACHED),
            _I.MOVED: (_S.OVER, _A.LOSE),
            _I.DIRECT_COMMIT: (_S.DIRECT, _A.PASS),
            _I.LOST: (_S.BACK, _A.AWAIT),
        },
    ),
    _S.ENDING: _row(
        _S.ENDING,
        {
            _I.DIRECT_COMMIT: (_S.ENDING, _A.PASS),
            _I.LAST_COMMIT: (_S.OVER, _A.PASS_WITH_END),
            # Its router knows nothing of it any more.
            _I.LOST: (_S.OVER, _A.LOSE),
        },
    ),
    _S.BACK: _row(
        _S.BACK,
        {
            _I.RELAYED_COMMIT: (_S.OVER, _A.LOSE),
            _I.DONE: (_S.OVER, _A.PASS),
            _I.EARLY_DONE: (_S.OVER, _A.LOSE),
            _I.ERROR: (_S.OVER, _A.PASS),
            _I.MOVED: (_S.OVER, _A.LOSE),
            _I.NO_VERDICT: (_S.OVER, _A.LOSE),
        },
    ),
    _S.OVER: _row(_S.OVER, {}),
}
"""Next state and action by state and input. A RELAYED_COMMIT or MOVED behind SWITCHED breaks the
protocol."""


class PathStep(NamedTuple, Generic[FrameT]):
    """What to do next."""

    action: PathAction
    frames: tuple[FrameT, ...] = ()
    """To be passed on, in this order."""


class SwitchOver(Generic[FrameT]):
    """The way of one session's commits."""

    def __init__(self) -> None:
        self.state = PathState.RELAYED
        self._upto = 0
        """Final tokens passed on; 0: none yet."""
        self._held: list[tuple[FrameT, int]] = []
        self._end: FrameT | None = None
        self._end_upto = 0

    @property
    def num_held(self) -> int:
        """Commits that wait for those before them."""
        return len(self._held)

    def apply(self, event: PathInput, frame: FrameT | None = None) -> PathStep[FrameT]:
        """Anything but a commit and a regular end. `frame` is what said it."""
        self.state, action = TRANSITIONS[self.state][event]
        if action in (PathAction.PASS, PathAction.PASS_DETACHED):
            self._held.clear()
            return PathStep(action, () if frame is None else (frame,))
        if action is PathAction.RELEASE:
            frames = tuple(held for held, _ in self._held)
            self._upto = self._held[-1][1] if self._held else self._upto
            self._held.clear()
            return PathStep(action, frames)
        if self.state in (PathState.RELAYED, PathState.OVER):
            self._held.clear()
        return PathStep(action)

    def relayed_commit(self, frame: FrameT, upto: int) -> PathStep[FrameT]:
        """A commit through the router: `upto` tokens are final."""
        self.state, action = TRANSITIONS[self.state][PathInput.RELAYED_COMMIT]
        if action is not PathAction.PASS:
            return PathStep(action)
        self._upto = upto
        return PathStep(action, (frame,))

    def direct_commit(self, frame: FrameT, upto: int) -> PathStep[FrameT]:
        """A commit from the replica."""
        if self.state is PathState.SWITCHING and len(self._held) >= MAX_HELD:
            return self.apply(PathInput.OVERFULL)
        is_last = self.state is PathState.ENDING and upto >= self._end_upto
        event = PathInput.LAST_COMMIT if is_last else PathInput.DIRECT_COMMIT
        self.state, action = TRANSITIONS[self.state][event]
        if action is PathAction.HOLD:
            self._held.append((frame, upto))
        elif action is PathAction.PASS:
            self._upto = upto
            return PathStep(action, (frame,))
        elif action is PathAction.PASS_WITH_END:
            assert self._end is not None, "it was held"
            return PathStep(action, (frame, self._end))
        return PathStep(action)

    def done(self, frame: FrameT, upto: int) -> PathStep[FrameT]:
        """The session's end, which counts so many tokens."""
        is_whole = upto <= self._upto
        step = self.apply(PathInput.DONE if is_whole else PathInput.EARLY_DONE, frame)
        if step.action is PathAction.HOLD:
            self._end, self._end_upto = frame, upto
        return step
