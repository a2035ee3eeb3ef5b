"""Which vocabularies are loaded and who waits: every state with every input, scenes, and random
runs in which every bound is met."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.errors import OutriderError, VocabularyMismatchError
from services.tokenizer.vocabulary_table import (
    Grant,
    Load,
    Refuse,
    TableAction,
    Unload,
    VocabularyKey,
    VocabularyLimits,
    VocabularyTable,
)

LIMITS = VocabularyLimits(max_loaded=1, max_wait_s=2.0, max_waiting=2, retry_s=5.0)
Table: TypeAlias = VocabularyTable[str]


def digest(key: VocabularyKey) -> bytes:
    """Every load has a vocabulary of its own."""
    return f"{key.model}{key.number}".encode()


def told(actions: list[TableAction[str]]) -> str:
    """Actions in short: `load a1`, `unload a1`, `w gets a1`, `w refused OVERLOADED`."""
    return ", ".join(map(_told, actions))


def _told(action: TableAction[str]) -> str:
    match action:
        case Load(key):
            return f"load {digest(key).decode()}"
        case Unload(key):
            return f"unload {digest(key).decode()}"
        case Grant(waiter, _, vocabulary):
            return f"{waiter} gets {vocabulary.decode()}"
        case Refuse(waiter, error):
            return f"{waiter} refused {error.reason}"


A1, A2 = VocabularyKey("a", 1), VocabularyKey("a", 2)


class State(Enum):
    """Of the first load of model a, at a table with room for one model."""

    ABSENT = auto()
    LOADING = auto()
    WAITED_FOR = auto()
    """It is being loaded, and w waits for it."""
    IDLE = auto()
    IN_USE = auto()
    HELD_OFF = auto()
    """It could not be loaded a moment ago."""
    REPLACED = auto()
    """It is being loaded, and the definition changed: a2 is loaded too."""
    REPLACED_IN_USE = auto()
    """It is used, and a2 is being loaded."""


def table_in(state: State) -> Table:
    """A table for the models a and b with a1 in that state at 0 s."""
    table = Table("ab", LIMITS)
    if state is State.ABSENT:
        return table
    assert told(table.ask("a", b"", "w", 0.0)) == "load a1"
    if state not in (State.WAITED_FOR, State.IN_USE, State.REPLACED_IN_USE):
        table.leave("w")
    if state is State.HELD_OFF:
        assert table.failed(A1, "why", 0.0) == []
    if state in (State.IDLE, State.IN_USE, State.REPLACED_IN_USE):
        table.loaded(A1, (digest(A1),))
    if state in (State.REPLACED, State.REPLACED_IN_USE):
        assert told(table.define("ab", {"a"})) == "load a2"
    return table


INPUTS: Final[dict[str, Callable[[Table], list[TableAction[str]]]]] = {
    "x asks": lambda table: table.ask("a", b"", "x", 1.0),
    "x asks for a1": lambda table: table.ask("a", digest(A1), "x", 1.0),
    "x asks for b": lambda table: table.ask("b", b"", "x", 1.0),
    "changed": lambda table: table.define("ab", {"a"}),
    "removed": lambda table: table.define("b", ()),
    "released": lambda table: table.release(A1),
    "loaded": lambda table: table.loaded(A1, (digest(A1),)),
    "failed": lambda table: table.failed(A1, "why", 1.0),
    "2 s pass": lambda table: table.tick(2.0),
}

IMPOSSIBLE: Final = "impossible"
FULL: Final = "x refused OVERLOADED"
UNAVAILABLE: Final = "refused VOCABULARY_UNAVAILABLE"

EXPECTED: Final[dict[State, dict[str, str]]] = {
    State.ABSENT: {
        "x asks": "load a1",
        "x asks for a1": "load a1",
        "x asks for b": "load b1",
        "changed": "load a1",
        "removed": "",
        "released": IMPOSSIBLE,
        "loaded": IMPOSSIBLE,
        "failed": IMPOSSIBLE,
        "2 s pass": "",
    },
    State.LOADING: {
        "x asks": "",
        "x asks for a1": "",
        "x asks for b": FULL,
        "changed": "load a2",
        "removed": "",
        "released": IMPOSSIBLE,
        "loaded": "",
        "failed": "",
        "2 s pass": "",
    },
    State.WAITED_FOR: {
        "x asks": "",
        "x asks for a1": "",
        "x asks for b": FULL,
        "changed": "load a2",
        "removed": "",
        "released": IMPOSSIBLE,
        "loaded": "w gets a1",
        "failed": f"w {UNAVAILABLE}",
        "2 s pass": f"w {UNAVAILABLE}",
    },
    State.IDLE: {
        "x asks": "x gets a1",
        "x asks for a1": "x gets a1",
        "x asks for b": "unload a1, load b2",
        "changed": "unload a1, load a2",
        "removed": "unload a1",
        "released": IMPOSSIBLE,
        "loaded": IMPOSSIBLE,
        "failed": IMPOSSIBLE,
        "2 s pass": "",
    },
    State.IN_USE: {
        "x asks": "x gets a1",
        "x asks for a1": "x gets a1",
        "x asks for b": FULL,
        "changed": "load a2",
        "removed": "",
        "released": "",
        "loaded": IMPOSSIBLE,
        "failed": IMPOSSIBLE,
        "2 s pass": "",
    },
    State.HELD_OFF: {
        "x asks": f"x {UNAVAILABLE}",
        "x asks for a1": f"x {UNAVAILABLE}",
        "x asks for b": "load b2",
        "changed": "load a2",
        "removed": "",
        "released": IMPOSSIBLE,
        "loaded": IMPOSSIBLE,
        "failed": IMPOSSIBLE,
        "2 s pass": "",
    },
    State.REPLACED: {
        "x asks": "",
        "x asks for a1": "",
        "x asks for b": FULL,
        "changed": "",  # there is no room for a third one beside these two
        "removed": "",
        "released": IMPOSSIBLE,
        "loaded": "unload a1",
        "failed": "",
        "2 s pass": "",
    },
    State.REPLACED_IN_USE: {
        "x asks": "",
        "x asks for a1": "x gets a1",
        "x asks for b": FULL,
        "changed": "",
        "removed": "",
        "released": "unload a1",
        "loaded": IMPOSSIBLE,
        "failed": IMPOSSIBLE,
        "2 s pass": "",
    },
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", INPUTS)
def test_every_state_with_every_input(state: State, event: str) -> None:
    table, expected = table_in(state), EXPECTED[state][event]
    if expected == IMPOSSIBLE:
        with pytest.raises((AssertionError, KeyError)):
            INPUTS[event](table)
        return
    assert told(INPUTS[event](table)) == expected
    table.check_invariants()


def test_who_waits_is_answered_when_the_load_ends() -> None:
    table = table_in(State.REPLACED)
    table.ask("a", b"", "new", 0.0)
    table.ask("a", digest(A1), "old", 0.0)
    assert told(table.loaded(A1, (digest(A1),))) == "unload a1"
    assert told(table.loaded(A2, (digest(A2),))) == ("new gets a2, old refused VOCABULARY_MISMATCH")


def test_what_was_waited_for_is_given_though_it_was_removed_meanwhile() -> None:
    table = table_in(State.WAITED_FOR)
    assert table.define("b", ()) == []
    assert told(table.loaded(A1, (digest(A1),))) == "w gets a1"
    assert told(table.ask("a", digest(A1), "worker", 0.0)) == "worker gets a1"
    assert told(table.ask("a", b"", "x", 0.0)) == "x refused UNKNOWN_MODEL"
    assert table.release(A1) == []
    assert told(table.release(A1)) == "unload a1"
    assert told(table.ask("a", digest(A1), "worker", 0.0)) == "worker refused UNKNOWN_MODEL"


def test_a_model_may_have_older_vocabularies_which_are_found_by_digest() -> None:
    table = Table("a", LIMITS)
    table.ask("", b"", "first", 0.0)
    assert told(table.loaded(A1, (b"new", b"old"))) == "first gets new"
    assert told(table.ask("a", b"old", "x", 0.0)) == "x gets old"
    (refused,) = table.ask("a", b"\x01", "y", 0.0)
    assert isinstance(refused, Refuse) and isinstance(refused.error, VocabularyMismatchError)
    assert refused.error.metadata == {"ours": b"new".hex(), "theirs": "01"}


def test_the_one_used_least_recently_gives_way() -> None:
    table = Table("abc", VocabularyLimits(max_loaded=2))
    for load in table.preload():
        table.loaded(load.key, (digest(load.key),))
    assert told(table.ask("a", b"", "x", 0.0)) == "x gets a1"
    assert table.release(A1) == []
    assert told(table.ask("c", b"", "y", 0.0)) == "unload b2, load c3"


def test_a_failed_load_is_tried_again_after_a_while() -> None:
    table = table_in(State.HELD_OFF)
    (refused,) = table.ask("a", b"", "x", 4.0)
    assert isinstance(refused, Refuse)
    assert refused.error.retry_delay_ms == 1000 and refused.error.message.endswith(": why")
    assert told(table.ask("a", b"", "x", 5.0)) == "load a2"


def test_as_many_wait_as_may_and_no_longer_than_they_may() -> None:
    table = table_in(State.WAITED_FOR)
    assert table.ask("a", b"", "x", 1.0) == []
    assert told(table.ask("a", b"", "y", 1.0)) == f"y {UNAVAILABLE}"
    assert table.next_deadline() == 2.0
    assert told(table.tick(2.0)) == f"w {UNAVAILABLE}"
    assert table.next_deadline() == 3.0
    table.leave("x")
    assert table.next_deadline() is None


def test_replaced_ones_in_use_are_bounded_too() -> None:
    """The file changes again and again, and each time a request goes on with what it has."""
    table = table_in(State.REPLACED_IN_USE)
    assert told(table.loaded(A2, (digest(A2),))) == ""
    assert told(table.ask("a", b"", "x", 0.0)) == "x gets a2"
    assert told(table.define("ab", {"a"})) == ""
    assert told(table.ask("a", b"", "y", 0.0)) == "y refused OVERLOADED"
    assert told(table.release(A1)) == "unload a1"
    assert told(table.ask("a", b"", "y", 0.0)) == "load a3"


class AnyRun(RuleBasedStateMachine):
    """Requests come and go, loads end, the file changes."""

    def __init__(self) -> None:
        super().__init__()
        limits = VocabularyLimits(max_loaded=2, max_wait_s=2.0, max_waiting=3, retry_s=3.0)
        self.table = VocabularyTable[int](["a"], limits)
        self.now = 0.0
        self.num_asked = 0
        self.loading: list[VocabularyKey] = []
        self.loaded: set[VocabularyKey] = set()
        self.waiting: set[int] = set()
        self.users: list[VocabularyKey] = []

    def carry_out(self, actions: list[TableAction[int]]) -> None:
        for action in actions:
            match action:
                case Load(key):
                    self.loading.append(key)
                case Unload(key):
                    assert key not in self.users, "never taken from who uses it"
                    self.loaded.remove(key)
                case Grant(waiter, key, _):
                    assert key in self.loaded
                    self.waiting.remove(waiter)
                    self.users.append(key)
                case Refuse(waiter, error):
                    assert isinstance(error, OutriderError) and error.message
                    self.waiting.remove(waiter)

    @rule(model=st.sampled_from(["", "a", "b", "c"]), old=st.booleans())
    def ask(self, model: str, old: bool) -> None:
        self.num_asked += 1
        self.waiting.add(self.num_asked)
        asked = digest(self.users[0]) if old and self.users else b""
        self.carry_out(self.table.ask(model, asked, self.num_asked, self.now))

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), fails=st.booleans())
    def end_load(self, data: st.DataObject, fails: bool) -> None:
        key = self.loading.pop(data.draw(st.integers(0, len(self.loading) - 1)))
        if fails:
            self.carry_out(self.table.failed(key, "why", self.now))
        else:
            self.loaded.add(key)
            self.carry_out(self.table.loaded(key, (digest(key),)))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.carry_out(self.table.release(key))

    @precondition(lambda self: self.waiting)
    @rule()
    def leave(self) -> None:
        self.table.leave(self.waiting.pop())

    @rule(
        models=st.lists(st.sampled_from("abc"), min_size=1),
        changed=st.sets(st.sampled_from("abc")),
    )
    def define(self, models: list[str], changed: set[str]) -> None:
        self.carry_out(self.table.define(models, changed))

    @rule(passes_s=st.sampled_from((0.5, 2.0)))
    def tick(self, passes_s: float) -> None:
        self.now += passes_s
        self.carry_out(self.table.tick(self.now))
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def holds(self) -> None:
        self.table.check_invariants()
        assert (self.table.next_deadline() is None) == (not self.waiting)

    def teardown(self) -> None:
        """When all have ended, what is not served any more is gone."""
        while self.loading:
            key = self.loading.pop()
            self.loaded.add(key)
            self.carry_out(self.table.loaded(key, (digest(key),)))
        while self.users:
            self.carry_out(self.table.release(self.users.pop()))
        assert not self.waiting
        self.carry_out(self.table.define(["d"], ()))
        assert not self.loaded


TestAnyRun = AnyRun.TestCase
TestAnyRun.settings = settings(max_examples=60, stateful_step_count=40)
