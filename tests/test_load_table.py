"""What is loaded and who waits: scenes, and random ones in which every bound is met."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outrider.fair_work.turns import Requester
from outrider.load_table import (
    Grant,
    Load,
    LoadAction,
    LoadLimits,
    LoadTable,
    Refusal,
    Refuse,
    Unload,
)


class Key(NamedTuple):
    name: str
    version: str = "1"


LIMITS = LoadLimits(max_waiting=3, max_wait_s=10.0, min_loaded_s=2.0, retry_s=4.0)


def table_of(names: str, max_loaded: int = 1, *, waits: bool = True) -> LoadTable[Key, str]:
    """One that serves models of these one-letter names."""
    table = LoadTable[Key, str](max_loaded, LIMITS, waits_for_room=waits)
    assert table.define([Key(name) for name in names], 0.0) == []
    return table


def load(table: LoadTable[Key, str], name: str, now: float = 0.0) -> None:
    """Have a model loaded, and nobody use it."""
    assert table.ask(name, "first", now)[-1] == Load(Key(name))
    assert table.loaded(Key(name), now) == [Grant("first", Key(name))]
    assert table.release(Key(name), now) == []


def refusals(actions: list[LoadAction[Key, str]]) -> dict[str, Refusal]:
    return {it.waiter: it.why for it in actions if isinstance(it, Refuse)}


def test_chats_for_one_model_cause_one_load() -> None:
    table = table_of("ab")
    assert table.ask("a", "x", 0) == [Load(Key("a"))]
    assert table.ask("a", "y", 0) == []
    assert table.loaded(Key("a"), 1) == [Grant("x", Key("a")), Grant("y", Key("a"))]
    assert table.ask("a", "z", 1) == [Grant("z", Key("a"))]
    assert table.use("a") == Key("a") and table.use("b") is None


def test_the_least_recently_used_model_gives_way() -> None:
    table = table_of("abc", max_loaded=2)
    load(table, "a")
    load(table, "b")
    assert table.use("a") == Key("a")
    table.release(Key("a"), 1)
    assert table.ask("c", "x", 5) == [Unload(Key("b"), True), Load(Key("c"))]
    assert table.closed(Key("b"), 6) == []
    assert table.use("a") == Key("a") and table.use("b") is None


def test_a_model_in_use_stays_and_chats_wait_for_its_end() -> None:
    table = table_of("ab")
    load(table, "a")
    table.use("a")
    assert table.ask("b", "x", 5) == []
    assert table.release(Key("a"), 6) == [Unload(Key("a"), True), Load(Key("b"))]


def test_a_model_that_was_just_loaded_stays_for_a_while() -> None:
    table = table_of("ab")
    load(table, "a")
    assert table.ask("b", "x", 1) == []
    assert table.next_deadline() == LIMITS.min_loaded_s
    assert table.tick(2) == [Unload(Key("a"), True), Load(Key("b"))]
    assert table.next_deadline() == 11


def test_who_waits_behind_another_model_does_not_overtake() -> None:
    table = table_of("abc", max_loaded=1)
    load(table, "a")
    table.use("a")
    assert table.ask("b", "x", 5) == table.ask("c", "y", 5) == []
    assert table.leave("x", 5) == []
    assert table.release(Key("a"), 6) == [Unload(Key("a"), True), Load(Key("c"))]


def test_a_failed_load_refuses_all_and_is_tried_again_after_a_while() -> None:
    table = table_of("ab")
    table.ask("a", "x", 0)
    table.ask("a", "y", 0)
    told = [Refuse(waiter, "a", Refusal.FAILED, 4.0, "why") for waiter in "xy"]
    assert table.failed(Key("a"), 1, "why") == told
    assert table.ask("a", "z", 4) == [Refuse("z", "a", Refusal.FAILED, 1.0, "why")]
    assert table.ask("a", "z", 5) == [Load(Key("a"))]


def test_as_many_wait_as_may() -> None:
    table = table_of("a")
    for number in range(LIMITS.max_waiting):
        assert refusals(table.ask("a", str(number), 0)) == {}
    assert refusals(table.ask("a", "more", 0)) == {"more": Refusal.TOO_MANY_WAITING}
    table.leave("1", 0)
    assert refusals(table.ask("a", "more", 0)) == {}


def test_whoever_has_most_waiting_loses_the_newest() -> None:
    table = table_of("ab")
    flood, other = Requester("flood"), Requester("other")
    for number in range(LIMITS.max_waiting):
        table.ask("a", str(number), 0, None, flood)
    last = str(LIMITS.max_waiting - 1)
    assert refusals(table.ask("b", "mine", 0, None, other)) == {last: Refusal.TOO_MANY_WAITING}
    assert refusals(table.ask("a", "more", 0, None, flood)) == {"more": Refusal.TOO_MANY_WAITING}
    table.check_invariants()
    granted = [it.waiter for it in table.loaded(Key("a"), 1) if isinstance(it, Grant)]
    assert granted == [str(number) for number in range(LIMITS.max_waiting - 1)]
    table.check_invariants()


def test_a_load_begins_however_many_wait_for_another() -> None:
    table = table_of("abc", max_loaded=2)
    load(table, "b")
    for number in range(LIMITS.max_waiting):
        table.ask("a", str(number), 5)
    refused = Refuse("more", "c", Refusal.TOO_MANY_WAITING)
    assert table.ask("c", "more", 5) == [Unload(Key("b"), True), Load(Key("c")), refused]
    assert table.ask("c", "more", 5) == [refused]


def test_nobody_waits_for_ever() -> None:
    table = table_of("ab")
    load(table, "a")
    table.use("a")
    table.ask("b", "patient", 0)
    table.ask("b", "hasty", 0, patience_s=3.0)
    table.ask("b", "late", 0, patience_s=30.0)
    assert table.next_deadline() == 3
    assert table.tick(3) == [Refuse("hasty", "b", Refusal.IN_USE, is_deadline=True)]
    assert refusals(table.tick(10)) == dict.fromkeys(("patient", "late"), Refusal.IN_USE)
    table.release(Key("a"), 11)
    table.ask("b", "x", 11)
    assert refusals(table.tick(21)) == {"x": Refusal.STILL_LOADING}
    assert table.next_deadline() is None


def test_a_model_that_is_removed_ends_with_its_last_chat() -> None:
    table = table_of("ab", max_loaded=2)
    load(table, "a")
    table.use("a")
    table.ask("b", "x", 0)
    actions = table.define([], 1)
    assert refusals(actions) == {"x": Refusal.NOT_SERVED}
    assert refusals(table.ask("a", "y", 1)) == {"y": Refusal.NOT_SERVED}
    assert table.loaded(Key("b"), 2) == [Unload(Key("b"), False)], "nobody wants it any more"
    assert table.release(Key("a"), 3) == [Unload(Key("a"), False)]


def test_a_definition_that_changed_is_loaded_anew_while_chats_are_on_the_old_one() -> None:
    table = table_of("a")
    load(table, "a")
    table.use("a")
    new = Key("a", "2")
    assert table.define([new], 1) == []
    assert table.ask("a", "x", 1) == [Load(new)]
    assert table.loaded(new, 2) == [Grant("x", new)]
    assert table.release(Key("a"), 3) == [Unload(Key("a"), False)]
    assert table.closed(Key("a"), 3) == []
    assert table.release(new, 4) == []


def test_who_waits_for_the_old_definition_gets_the_new_one() -> None:
    table = table_of("a")
    table.ask("a", "x", 0)
    new = Key("a", "2")
    assert table.define([new], 1) == [Load(new)]
    assert table.loaded(Key("a"), 2) == [Unload(Key("a"), False)]
    assert table.loaded(new, 3) == [Grant("x", new)]


def test_old_definitions_take_as_many_places_again_and_no_more() -> None:
    table = table_of("a")
    load(table, "a")
    table.use("a")
    second, third = Key("a", "2"), Key("a", "3")
    table.define([second], 0)
    table.ask("a", "x", 0)
    table.loaded(second, 0)
    table.define([third], 0)
    assert table.ask("a", "y", 0) == []
    assert table.next_deadline() == 10, "only the end of a chat makes room"
    assert table.release(second, 1) == [Unload(second, False)]
    assert table.closed(second, 2) == [Load(third)]


def test_a_definition_that_comes_back_serves_who_waits() -> None:
    table = table_of("a")
    load(table, "a")
    table.use("a")
    table.define([Key("a", "2")], 0)
    table.ask("a", "x", 0)
    assert table.define([Key("a")], 1) == [Grant("x", Key("a"))]


def test_one_that_is_being_closed_is_loaded_when_that_is_done() -> None:
    table = table_of("a")
    load(table, "a")
    assert table.define([], 0) == [Unload(Key("a"), False)]
    assert table.define([Key("a")], 0) == []
    assert table.ask("a", "x", 0) == []
    assert table.closed(Key("a"), 1) == [Load(Key("a"))]


def test_the_first_model_is_loaded_unasked_where_there_is_room() -> None:
    table = table_of("ab")
    assert table.preload("a") == [Load(Key("a"))]
    assert table.preload("a") == table.preload("b") == []
    assert table.loaded(Key("a"), 0) == []


def test_who_does_not_wait_for_room_is_refused_at_once() -> None:
    table = table_of("abc", waits=False)
    assert table.ask("a", "x", 0) == [Load(Key("a"))]
    assert table.ask("a", "y", 0) == [], "all wait for loads"
    assert refusals(table.ask("b", "z", 0)) == {"z": Refusal.IN_USE}, "none can be stopped"
    table.loaded(Key("a"), 0)
    assert refusals(table.ask("b", "z", 5)) == {"z": Refusal.IN_USE}
    assert table.release(Key("a"), 5) == table.release(Key("a"), 5) == []
    assert table.ask("b", "z", 5) == [Unload(Key("a"), True), Load(Key("b"))]


def test_an_older_definition_may_have_more_users_while_it_has_one() -> None:
    table = table_of("a")
    load(table, "a")
    table.use("a")
    table.define([Key("a", "2")], 0)
    table.use_again(Key("a"))
    assert table.release(Key("a"), 1) == []
    assert table.release(Key("a"), 1) == [Unload(Key("a"), False)]
    with pytest.raises(AssertionError):
        table.use_again(Key("a"))


class Machine(RuleBasedStateMachine):
    """Any order of verbs; what is asked to be done is done sooner or later."""

    MAX_LOADED = 2

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loading: list[Key] = []
        self.closing: list[Key] = []
        self.loaded_keys: set[Key] = set()
        self.users: list[Key] = []
        self.waiting: set[int] = set()
        self.last = 0

    @initialize(waits=st.booleans())
    def begin(self, waits: bool) -> None:
        self.table = LoadTable[Key, int](self.MAX_LOADED, LIMITS, waits_for_room=waits)

    def perform(self, actions: list[LoadAction[Key, int]]) -> None:
        for action in actions:
            match action:
                case Load(it):
                    assert it not in self.loading + self.closing and it not in self.loaded_keys
                    self.loading.append(it)
                case Unload(it):
                    assert it not in self.users, "never one that is in use"
                    self.loaded_keys.remove(it)
                    self.closing.append(it)
                case Grant(waiter, it):
                    assert it in self.loaded_keys
                    self.users.append(it)
                    self.waiting.remove(waiter)
                case Refuse(waiter):
                    self.waiting.remove(waiter)
        assert self.table.num_waiting == len(self.waiting)

    @rule(names=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("12")), max_size=4))
    def define(self, names: list[tuple[str, str]]) -> None:
        self.perform(self.table.define([Key(*it) for it in dict(names).items()], self.now))

    @rule(name=st.sampled_from("abcd"), patience_s=st.none() | st.floats(0.1, 20))
    def ask(self, name: str, patience_s: float | None) -> None:
        self.last += 1
        self.waiting.add(self.last)
        self.perform(self.table.ask(name, self.last, self.now, patience_s))

    @rule(name=st.sampled_from("abcd"))
    def use(self, name: str) -> None:
        served = self.table.served(name)
        used = self.table.use(name)
        assert used == (served if served in self.loaded_keys else None)
        if used is not None:
            self.users.append(used)

    @rule(name=st.sampled_from("abcd"))
    def preload(self, name: str) -> None:
        if self.table.served(name) is not None:
            self.perform(self.table.preload(name))

    @precondition(lambda self: self.users)
    @rule()
    def use_again(self) -> None:
        self.table.use_again(self.users[0])
        self.users.append(self.users[0])

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        used = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.perform(self.table.release(used, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(waiter)
        self.perform(self.table.leave(waiter, self.now))

    @precondition(lambda self: self.loading)
    @rule(well=st.booleans())
    def end_load(self, well: bool) -> None:
        it = self.loading.pop(0)
        if well:
            self.loaded_keys.add(it)
            self.perform(self.table.loaded(it, self.now))
        else:
            self.perform(self.table.failed(it, self.now))

    @precondition(lambda self: self.closing)
    @rule()
    def end_close(self) -> None:
        self.perform(self.table.closed(self.closing.pop(0), self.now))

    @rule(wait_s=st.floats(0, 8))
    def wait(self, wait_s: float) -> None:
        """As the shell does: `tick` when it is due, however often."""
        until = self.now + wait_s
        for _ in range(100):
            at = self.table.next_deadline()
            if at is None or at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.perform(self.table.tick(self.now))
        raise AssertionError("its deadlines do not pass")

    @invariant()
    def it_is_consistent(self) -> None:
        self.table.check_invariants()
        assert len(self.loading) + len(self.closing) + len(self.loaded_keys) <= 2 * self.MAX_LOADED

    def teardown(self) -> None:
        """When all chats end and all work is done, nobody is left waiting."""
        for _ in range(100):
            while self.loading:
                self.end_load_well()
            while self.closing:
                self.perform(self.table.closed(self.closing.pop(0), self.now))
            while self.users:
                self.perform(self.table.release(self.users.pop(), self.now))
            if not self.waiting:
                return
            self.now += LIMITS.min_loaded_s
            self.perform(self.table.tick(self.now))
        raise AssertionError("somebody waits for ever")

    def end_load_well(self) -> None:
        it = self.loading.pop(0)
        self.loaded_keys.add(it)
        self.perform(self.table.loaded(it, self.now))


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
