"""The way of a session's commits: every state with every input, and every order in which frames of
two streams can come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.upstream.switch_over import (
    MAX_HELD,
    TRANSITIONS,
    PathAction,
    PathInput,
    PathState,
    SwitchOver,
)

Frame = tuple[str, int, int]
"""Kind, base, upto."""
_FROM_ROUTER = (PathInput.DONE, PathInput.EARLY_DONE, PathInput.ERROR)


@pytest.mark.parametrize("state", PathState)
@pytest.mark.parametrize("event", PathInput)
def test_every_state_takes_every_input(state: PathState, event: PathInput) -> None:
    after, action = TRANSITIONS[state][event]
    if state is PathState.OVER:
        assert (after, action) == (PathState.OVER, PathAction.DROP)
    if action is PathAction.LOSE:
        assert after is PathState.OVER, "a chat opens its session again once"
    if action is PathAction.DROP:
        assert after is state
    if event in _FROM_ROUTER and state not in (PathState.ENDING, PathState.OVER):
        assert after in (PathState.OVER, PathState.ENDING), "no chat waits behind its end"
    if event is PathInput.DIRECT_COMMIT:
        waits = state is PathState.SWITCHING
        reads = state in (PathState.DIRECT, PathState.ENDING)
        expected = PathAction.HOLD if waits else PathAction.PASS if reads else PathAction.DROP
        assert action is expected
    if event is PathInput.LOST and state in (PathState.SWITCHING, PathState.DIRECT):
        assert after in (PathState.RELAYED, PathState.BACK), "its router still has it"


class Chat:
    """Takes what is passed on: every token once, in order."""

    def __init__(self) -> None:
        self.upto = 0
        self.is_over = False

    def take(self, frames: tuple[Frame, ...]) -> None:
        for kind, base, upto in frames:
            assert not self.is_over
            if kind == "commit":
                assert base == self.upto
                self.upto = upto
            else:
                assert upto == self.upto, "an end comes behind all of its tokens"
                self.is_over = True


def _take(path: SwitchOver[Frame], chat: Chat, frame: Frame, *, is_direct: bool) -> PathAction:
    kind, _, upto = frame
    if kind == "marker":
        step = path.apply(PathInput.SWITCHED)
    elif kind == "done":
        step = path.done(frame, upto)
    elif is_direct:
        step = path.direct_commit(frame, upto)
    else:
        step = path.relayed_commit(frame, upto)
    chat.take(step.frames)
    return step.action


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    switch_behind=st.integers(1, 12),
    orders=st.lists(st.booleans(), max_size=40),
    lost_behind=st.none() | st.integers(0, 12),
    granted_behind=st.integers(0, 2),
)
def test_no_token_twice_and_none_lost_wherever_it_switches(
    sizes: list[int],
    switch_behind: int,
    orders: list[bool],
    lost_behind: int | None,
    granted_behind: int,
) -> None:
    """The replica's commits go through the router until so many are out, then on the other stream,
    which may break; what is on its way on one stream overtakes what is on the other."""
    commits: list[Frame] = []
    for size in sizes:
        base = commits[-1][2] if commits else 0
        commits.append(("commit", base, base + size))
    whole = commits[-1][2]
    switch_behind = min(switch_behind, len(commits))
    relayed: list[Frame] = [*commits[:switch_behind], ("marker", 0, 0), ("done", whole, whole)]
    direct = commits[switch_behind:]
    path: SwitchOver[Frame] = SwitchOver()
    chat = Chat()
    granted_behind = min(granted_behind, switch_behind)
    for frame in relayed[:granted_behind]:
        _take(path, chat, frame, is_direct=False)
    assert path.apply(PathInput.GRANTED).action is PathAction.ATTACH
    del relayed[:granted_behind]
    is_lost = False
    num_direct = 0
    actions = []
    for takes_direct in [*orders, *[False] * len(relayed), *[True] * len(direct)]:
        if lost_behind == num_direct and not is_lost:
            is_lost = True
            step = path.apply(PathInput.LOST)
            chat.take(step.frames)
            actions.append(step.action)
        source = direct if takes_direct else relayed
        if not source or (takes_direct and is_lost):
            continue
        num_direct += takes_direct
        actions.append(_take(path, chat, source.pop(0), is_direct=takes_direct))
    if PathAction.LOSE in actions:
        assert is_lost and path.state is PathState.OVER
        assert not chat.is_over, "what ended is not opened again"
    else:
        assert chat.is_over and chat.upto == whole


def test_what_is_held_is_bounded_and_the_router_goes_on() -> None:
    path: SwitchOver[Frame] = SwitchOver()
    chat = Chat()
    path.apply(PathInput.GRANTED)
    for number in range(MAX_HELD):
        assert path.direct_commit(("commit", number, number + 1), number + 1).frames == ()
    assert path.num_held == MAX_HELD
    step = path.direct_commit(("commit", MAX_HELD, MAX_HELD + 1), MAX_HELD + 1)
    assert (step.action, path.num_held) == (PathAction.DETACH, 0)
    assert _take(path, chat, ("commit", 0, 1), is_direct=False) is PathAction.PASS
    assert _take(path, chat, ("marker", 0, 0), is_direct=False) is PathAction.LOSE


def test_another_replica_may_take_over_before_the_switch() -> None:
    """Its router moved it, behind the tokens that it relayed: commits that were held are void."""
    path: SwitchOver[Frame] = SwitchOver()
    chat = Chat()
    _take(path, chat, ("commit", 0, 3), is_direct=False)
    path.apply(PathInput.GRANTED)
    path.direct_commit(("commit", 3, 5), 5)
    assert path.apply(PathInput.MOVED, ("moved", 0, 0)).action is PathAction.PASS_DETACHED
    assert path.num_held == 0
    assert path.apply(PathInput.GRANTED).action is PathAction.ATTACH
    path.direct_commit(("commit", 4, 6), 6)
    _take(path, chat, ("commit", 3, 4), is_direct=False)
    _take(path, chat, ("marker", 0, 0), is_direct=False)
    assert chat.upto == 6


def test_a_router_that_says_nothing_of_a_lost_stream_is_not_waited_for() -> None:
    path: SwitchOver[Frame] = SwitchOver()
    chat = Chat()
    path.apply(PathInput.GRANTED)
    _take(path, chat, ("commit", 0, 1), is_direct=False)
    _take(path, chat, ("marker", 0, 0), is_direct=False)
    assert path.apply(PathInput.LOST).action is PathAction.AWAIT
    assert path.apply(PathInput.NO_VERDICT).action is PathAction.LOSE
