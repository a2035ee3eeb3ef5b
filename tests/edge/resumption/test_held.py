"""The table of held chats: every (state, input), its limits, and random histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import KeyReusedError
from services.edge.resumption.held import (
    TRANSITIONS,
    Held,
    HeldChats,
    Input,
    Key,
    ResumeLimits,
    State,
)
from services.edge.resumption.holders import Holder, Holders
from services.edge.resumption.journal import Journal
from services.edge.session.events import Commit

DIGEST = b"digest"
EMPTY_BYTES = Journal().num_bytes


OWNER, OTHER = b"owner", b"other owner"


def enter(
    table: HeldChats[str], name: str, share: str = "t", origin: str = "somewhere"
) -> Held[str]:
    holder = Holder(origin, share)
    return table.enter(Key(OWNER, name), holder, DIGEST, f"token of {name}", Journal(), name)


def write(held: Held[str], num_tokens: int) -> None:
    first = held.journal.upto
    ids = tuple(range(num_tokens))
    held.journal.note(Commit("", ids, first + num_tokens))


def table_with(state: State) -> tuple[HeldChats[str], Held[str]]:
    table = HeldChats[str](ResumeLimits())
    held = enter(table, "a")
    for event in {
        State.ATTACHED: (),
        State.DETACHED: (Input.LOST,),
        State.FINISHED: (Input.DONE,),
        State.GONE: (Input.FAILED,),
    }[state]:
        assert table.advance(held, event, 0.0) == []
    assert held.state is state
    return table, held


EXPECTED = {
    # input: ATTACHED, DETACHED, FINISHED, GONE
    Input.JOINED: ("ATTACHED", "ATTACHED", "FINISHED", "GONE"),
    Input.LOST: ("DETACHED", "DETACHED", "FINISHED", "GONE"),
    Input.DONE: ("FINISHED", "FINISHED", "FINISHED", "GONE"),
    Input.FAILED: ("GONE", "GONE", "FINISHED", "GONE"),
    Input.EXPIRED: ("ATTACHED", "GONE", "GONE", "GONE"),
}


@pytest.mark.parametrize("event", Input, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_and_input(state: State, event: Input) -> None:
    table, held = table_with(state)
    table.advance(held, event, 1.0)
    table.check_invariants()
    assert held.state.name == EXPECTED[event][list(State).index(state)]
    is_found = table.find(held.key, DIGEST) is held
    assert is_found == (held.state is not State.GONE)
    assert (table.by_token(held.token, OWNER, DIGEST) is held) == is_found
    assert set(TRANSITIONS) == {(s, i) for s in State for i in Input}


def test_a_lost_chat_waits_for_the_window_and_is_cancelled() -> None:
    table, held = table_with(State.DETACHED)
    at = table.next_expiry
    assert at == 30.0
    assert table.expire(29.9) == []
    assert table.expire(30.0) == ["a"]
    assert held.state is State.GONE
    assert table.next_expiry is None
    table.check_invariants()


def test_a_finished_chat_is_remembered_without_its_session() -> None:
    table, held = table_with(State.FINISHED)
    assert held.chat is None
    assert table.find(held.key, DIGEST) is held
    assert table.expire(30.0) == []
    assert table.find(held.key, DIGEST) is None


def test_a_client_that_came_back_stops_the_clock() -> None:
    table, held = table_with(State.DETACHED)
    table.advance(held, Input.JOINED, 5.0)
    assert (table.next_expiry, table.num_bytes, table.num_detached) == (None, 0, 0)
    table.advance(held, Input.LOST, 6.0)
    assert table.next_expiry == 36.0


def test_a_key_is_for_one_request() -> None:
    table, held = table_with(State.ATTACHED)
    with pytest.raises(KeyReusedError, match="new key"):
        table.find(held.key, b"another")
    with pytest.raises(KeyReusedError, match="another request"):
        table.by_token(held.token, OWNER, b"another")
    assert table.by_token(held.token, OWNER, None) is held
    assert table.find(Key(OTHER, "a"), b"another") is None
    assert table.by_token(held.token, OTHER, DIGEST) is None


def test_a_token_serves_once_but_for_an_answer_that_was_lost() -> None:
    table, held = table_with(State.DETACHED)

    def good(*tokens: str) -> list[bool]:
        return [table.by_token(token, OWNER, None) is held for token in tokens]

    first = held.token
    table.renew(held, first, "second")
    assert good(first, "second") == [True, True], "the client may not have it"
    table.renew(held, first, "third")
    assert good(first, "second", "third") == [True, False, True], "it had not"
    table.renew(held, "third", "fourth")
    assert good(first, "third", "fourth") == [False, True, True], "it had, and used it"
    table.acknowledge(held)
    assert good("third", "fourth") == [False, True]
    table.renew(held, "", "fifth")
    assert good("fourth", "fifth") == [True, True], "it came back by its idempotency key"
    table.check_invariants()
    table.advance(held, Input.FAILED, 1.0)
    assert good("fourth", "fifth") == [False, False]
    table.acknowledge(held)
    table.check_invariants()


def test_of_too_many_without_clients_the_oldest_of_who_has_most_is_given_up() -> None:
    table = HeldChats[str](ResumeLimits(max_detached=3, max_detached_each=2))
    chats = [enter(table, name, share) for name, share in zip("abcde", "xxxyz", strict=True)]
    ended = [table.advance(held, Input.LOST, 0.0) for held in chats]
    assert ended == [[], [], ["a"], [], ["b"]]
    table.check_invariants()


def test_one_that_moves_about_counts_as_one() -> None:
    table = HeldChats[str](ResumeLimits(max_detached_each=2))
    chats = [enter(table, name, "x", f"address {name}") for name in "abc"]
    ended = [table.advance(held, Input.LOST, 0.0) for held in chats]
    assert ended == [[], [], ["c"]]
    table.check_invariants()


def test_bytes_are_taken_from_finished_chats_first_and_then_from_those_that_go_on() -> None:
    table = HeldChats[str](ResumeLimits(max_bytes=3 * EMPTY_BYTES + 400))
    old, running, new = (enter(table, name) for name in ("old", "running", "new"))
    table.advance(old, Input.DONE, 0.0)
    table.advance(running, Input.LOST, 1.0)
    table.advance(new, Input.DONE, 2.0)
    write(running, 100)
    assert table.grew(running) == []
    write(running, 100)
    assert table.grew(running) == [], "the oldest finished one made room"
    assert (old.state, new.state) == (State.GONE, State.FINISHED)
    write(running, 3000)
    assert table.grew(running) == ["running"]
    assert new.state is State.GONE
    table.check_invariants()
    assert table.num_bytes == 0


def test_many_names_at_one_address_do_not_push_out_who_is_elsewhere() -> None:
    table = HeldChats[str](ResumeLimits(max_bytes=64 * EMPTY_BYTES, max_detached=32))
    finished = [enter(table, f"f{n}", "a client", "home") for n in range(8)]
    detached = [enter(table, f"d{n}", "a client", "home") for n in range(8)]
    for held in (*finished, *detached):
        write(held, 200)
        table.advance(held, Input.DONE if held in finished else Input.LOST, 0.0)
    for number in range(500):
        held = enter(table, f"x{number}", f"name {number}", "elsewhere")
        table.advance(held, (Input.DONE, Input.LOST)[number % 2], 1.0)
        table.check_invariants()
    assert {held.state for held in finished} == {State.FINISHED}
    assert {held.state for held in detached} == {State.DETACHED}
    assert table.num_bytes > 63 * EMPTY_BYTES


def test_a_key_may_be_used_again_once_its_chat_is_gone() -> None:
    table, held = table_with(State.GONE)
    again = enter(table, "a")
    assert table.advance(held, Input.FAILED, 1.0) == []
    assert table.find(held.key, DIGEST) is again
    table.check_invariants()


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "grow", "tick", "renew", "acknowledge", *Input]),
        st.integers(0, 7),
        st.integers(0, 2000),
    ),
    max_size=60,
)


def begin(table: HeldChats[str], held: dict[int, Held[str]], which: int, name: str) -> None:
    """A chat of one of eight keys begins, if the key is free."""
    share = "xy"[which % 2]
    key = Key(share.encode(), str(which))
    if table.find(key, DIGEST) is None:
        holder = Holder("pqr"[which % 3], share)
        held[which] = table.enter(key, holder, DIGEST, name, Journal(), name)


@given(steps)
def test_random_histories_keep_the_books(history: list[tuple[str | Input, int, int]]) -> None:
    limits = ResumeLimits(
        window_s=5, max_detached=3, max_detached_each=2, max_bytes=5 * EMPTY_BYTES
    )
    table = HeldChats[str](limits)
    held: dict[int, Held[str]] = {}
    now, ended = 0.0, set[str]()
    for number, (step, which, amount) in enumerate(history):
        if step == "enter" or which not in held:
            begin(table, held, which, f"{which}#{number}")
        elif step == "grow":
            if held[which].chat is not None:
                write(held[which], amount)
                ended.update(table.grew(held[which]))
        elif step in ("renew", "acknowledge"):
            if held[which].state is not State.GONE and step == "renew":
                table.renew(held[which], held[which].token * (amount % 2), f"{which}#{number}")
            elif step == "acknowledge":
                table.acknowledge(held[which])
        elif step == "tick":
            now += amount / 400
            ended.update(table.expire(now))
        else:
            assert isinstance(step, Input)
            ended.update(table.advance(held[which], step, now))
        table.check_invariants()
    assert all(h.state is State.GONE for h in held.values() if h.chat in ended)
    ended.update(table.close())
    table.check_invariants()
    assert table.next_expiry is None and table.num_bytes == 0


NUM_ORIGINS, NUM_SHARES, NUM_EACH, TOKENS_EACH = 2, 2, 2, 400
crowds = st.lists(
    st.tuples(
        st.integers(0, NUM_ORIGINS - 1),
        st.integers(0, NUM_SHARES - 1),
        st.sampled_from([Input.LOST, Input.DONE]),
        st.integers(0, TOKENS_EACH),
    ),
    min_size=16,
    max_size=40,
)


@given(st.lists(st.sampled_from([Input.LOST, Input.DONE]), max_size=NUM_EACH), crowds)
def test_who_holds_no_more_than_an_equal_part_loses_nothing_to_others(
    quiet: list[Input], crowd: list[tuple[int, int, Input, int]]
) -> None:
    """Of all origins, and in its own of all shares there."""
    num_chats = NUM_ORIGINS * NUM_SHARES * NUM_EACH
    limits = ResumeLimits(
        max_bytes=num_chats * (EMPTY_BYTES + 4 * TOKENS_EACH), max_detached=num_chats
    )
    table, kept = HeldChats[str](limits), list[Held[str]]()
    for number, event in enumerate(quiet):
        kept.append(enter(table, f"quiet {number}", "quiet", "0"))
        write(kept[-1], TOKENS_EACH)
        table.advance(kept[-1], event, 0.0)
    for number, (origin, share, event, num_tokens) in enumerate(crowd):
        # The quiet one is one of its origin's shares.
        name = f"{origin}/{max(share, 1 - origin)}"
        held = enter(table, f"{number}", name, f"{origin}")
        write(held, num_tokens)
        table.advance(held, event, 0.0)
        if held.state is State.DETACHED:
            write(held, 4 * num_tokens)
            table.grew(held)
        table.check_invariants()
    assert all(held.state is not State.GONE for held in kept)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-9, 9)), max_size=60))
def test_who_holds_most(changes: list[tuple[int, int, int]]) -> None:
    holders, amounts = Holders(), dict[Holder, int]()
    for origin, share, change in changes:
        holder = Holder(str(origin), str(share))
        before = amounts.get(holder, 0)
        holders.add(holder, max(change, -before))
        amounts[holder] = max(0, before + change)
        assert holders.total == sum(amounts.values())
        if holders.total:
            sums = dict[str, int]()
            for one, amount in amounts.items():
                sums[one.origin] = sums.get(one.origin, 0) + amount
            first = holders.first
            assert sums[first.origin] == max(sums.values())
            assert amounts[first] == max(a for h, a in amounts.items() if h.origin == first.origin)
