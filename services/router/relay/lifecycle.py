"""The life of one relayed session as a table of (state, input) -> (next state, action). Pure."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import TypeAlias


class State(IntEnum):
    """Where a session stands."""

    PLACING = 0
    """No replica has it: its messages are being tokenized, or it is between two replicas."""
    QUEUED = auto()
    """It was let in and waits for the first replica with room."""
    OPENING = auto()
    """A replica was sent the open and has not committed anything."""
    STREAMING = auto()
    """Its replica commits tokens."""
    CLOSING = auto()
    """The edge cancelled it and the replica has not yet confirmed."""
    ENDED = auto()


class Input(IntEnum):
    """What can happen to a session."""

    # From its edge.
    DRAFT = 0
    CANCEL = auto()
    EDGE_LOST = auto()
    # From this router.
    QUEUED = auto()
    PLACED = auto()
    ABORT = auto()
    """It cannot go on: no replica, an edge that does not read or broke the protocol, a replica
    that does not confirm a cancellation."""
    # From its replica.
    OPENED = auto()
    COMMIT = auto()
    DONE = auto()
    ERROR = auto()
    """An error that another replica would give too, or no other may be tried."""
    LEFT = auto()
    """Its replica cannot go on with it, refused it, is silent or lost: another one has to."""
    LOST = auto()
    """Its replica is lost and no other one may take it."""


class Action(IntEnum):
    """What the switch does about it."""

    DROP = 0
    KEEP = auto()
    """Keep the draft for the replica that is yet to be found."""
    KEEP_AND_SEND_UP = auto()
    """Send it, and keep it in case another replica takes over."""
    SEND_UP = auto()
    SEND_DOWN = auto()
    OPEN_UP = auto()
    """Send the open and the kept drafts to the replica."""
    CANCEL_UP = auto()
    """Tell the replica to cancel; the edge is gone and needs no answer."""
    CANCEL_AND_ANSWER = auto()
    """Tell the replica to cancel, and the edge why."""
    ANSWER = auto()
    """End the session towards the edge with an error of this router."""
    MOVE = auto()
    """Find another replica, which goes on after the tokens that are committed."""


Step: TypeAlias = tuple[State, Action]

_P, _Q, _O = State.PLACING, State.QUEUED, State.OPENING
_S, _C, _E = State.STREAMING, State.CLOSING, State.ENDED

TRANSITIONS: dict[State, dict[Input, Step]] = {
    _P: {
        Input.DRAFT: (_P, Action.KEEP),
        Input.CANCEL: (_E, Action.ANSWER),
        Input.EDGE_LOST: (_E, Action.DROP),
        Input.QUEUED: (_Q, Action.DROP),
        Input.PLACED: (_O, Action.OPEN_UP),
        Input.ABORT: (_E, Action.ANSWER),
    },
    _Q: {
        Input.DRAFT: (_Q, Action.KEEP),
        Input.CANCEL: (_E, Action.ANSWER),
        Input.EDGE_LOST: (_E, Action.DROP),
        Input.PLACED: (_O, Action.OPEN_UP),
        Input.ABORT: (_E, Action.ANSWER),
    },
    _O: {
        Input.DRAFT: (_O, Action.KEEP_AND_SEND_UP),
        Input.CANCEL: (_C, Action.SEND_UP),
        Input.EDGE_LOST: (_E, Action.CANCEL_UP),
        Input.ABORT: (_E, Action.CANCEL_AND_ANSWER),
        Input.OPENED: (_O, Action.SEND_DOWN),
        Input.COMMIT: (_S, Action.SEND_DOWN),
        Input.DONE: (_E, Action.SEND_DOWN),
        Input.ERROR: (_E, Action.SEND_DOWN),
        Input.LEFT: (_P, Action.MOVE),
        Input.LOST: (_E, Action.ANSWER),
    },
    _S: {
        Input.DRAFT: (_S, Action.SEND_UP),
        Input.CANCEL: (_C, Action.SEND_UP),
        Input.EDGE_LOST: (_E, Action.CANCEL_UP),
        Input.ABORT: (_E, Action.CANCEL_AND_ANSWER),
        Input.OPENED: (_S, Action.SEND_DOWN),
        Input.COMMIT: (_S, Action.SEND_DOWN),
        Input.DONE: (_E, Action.SEND_DOWN),
        Input.ERROR: (_E, Action.SEND_DOWN),
        Input.LEFT: (_P, Action.MOVE),
        Input.LOST: (_E, Action.ANSWER),
    },
    _C: {
        Input.DRAFT: (_C, Action.DROP),
        Input.CANCEL: (_C, Action.DROP),
        Input.EDGE_LOST: (_E, Action.DROP),
        Input.ABORT: (_E, Action.ANSWER),
        Input.OPENED: (_C, Action.SEND_DOWN),
        Input.COMMIT: (_C, Action.SEND_DOWN),
        Input.DONE: (_E, Action.SEND_DOWN),
        Input.ERROR: (_E, Action.SEND_DOWN),
        Input.LOST: (_E, Action.ANSWER),
    },
    _E: {},
}
"""Pairs left out cannot happen, because the session table drops late frames (a replica is found
by its own stream's number only while it has the session); meeting one is a KeyError, a defect."""
