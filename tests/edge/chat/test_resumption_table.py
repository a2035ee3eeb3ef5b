"""The table of entry chats: every (state, input), its limits, and random histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import KeyReusedError
from outrider.session.client import Committed
from services.edge.chat.eviction import EvictionKey, UsageRanking
from services.edge.chat.replay import ReplayLog
from services.edge.chat.resumption_table import (
    TRANSITIONS,
    ChatKey,
    ChatTable,
    ResumableChat,
    ResumableInput,
    ResumableState,
    ResumeLimits,
)

DIGEST = b"digest"
EMPTY_BYTES = ReplayLog().num_bytes


OWNER, OTHER = b"owner", b"other owner"


def enter(
    table: ChatTable[str], name: str, share: str = "t", origin: str = "somewhere"
) -> ResumableChat[str]:
    key = EvictionKey(origin, share)
    return table.add(ChatKey(OWNER, name), key, DIGEST, f"token of {name}", ReplayLog(), name)


def write(entry: ResumableChat[str], num_tokens: int) -> None:
    first = entry.log.upto
    ids = tuple(range(num_tokens))
    entry.log.append(Committed("", ids, first + num_tokens))


def table_with(state: ResumableState) -> tuple[ChatTable[str], ResumableChat[str]]:
    table = ChatTable[str](ResumeLimits())
    entry = enter(table, "a")
    for event in {
        ResumableState.ATTACHED: (),
        ResumableState.DETACHED: (ResumableInput.LOST,),
        ResumableState.FINISHED: (ResumableInput.DONE,),
        ResumableState.GONE: (ResumableInput.FAILED,),
    }[state]:
        assert table.advance(entry, event, 0.0) == []
    assert entry.state is state
    return table, entry


EXPECTED = {
    # input: ATTACHED, DETACHED, FINISHED, GONE
    ResumableInput.JOINED: ("ATTACHED", "ATTACHED", "FINISHED", "GONE"),
    ResumableInput.LOST: ("DETACHED", "DETACHED", "FINISHED", "GONE"),
    ResumableInput.DONE: ("FINISHED", "FINISHED", "FINISHED", "GONE"),
    ResumableInput.FAILED: ("GONE", "GONE", "FINISHED", "GONE"),
    ResumableInput.EXPIRED: ("ATTACHED", "GONE", "GONE", "GONE"),
}


@pytest.mark.parametrize("event", ResumableInput, ids=lambda event: event.name)
@pytest.mark.parametrize("state", ResumableState, ids=lambda state: state.name)
def test_every_state_and_input(state: ResumableState, event: ResumableInput) -> None:
    table, entry = table_with(state)
    table.advance(entry, event, 1.0)
    table.check_invariants()
    assert entry.state.name == EXPECTED[event][list(ResumableState).index(state)]
    is_found = table.find(entry.key, DIGEST) is entry
    assert is_found == (entry.state is not ResumableState.GONE)
    assert (table.by_token(entry.token, OWNER, DIGEST) is entry) == is_found
    assert set(TRANSITIONS) == set(ResumableState)
    assert all(set(row) == set(ResumableInput) for row in TRANSITIONS.values())


def test_a_lost_chat_waits_for_the_window_and_is_cancelled() -> None:
    table, entry = table_with(ResumableState.DETACHED)
    at = table.next_expiry
    assert at == 30.0
    assert table.expire(29.9) == []
    assert table.expire(30.0) == ["a"]
    assert entry.state is ResumableState.GONE
    assert table.next_expiry is None
    table.check_invariants()


def test_a_finished_chat_is_remembered_without_its_session() -> None:
    table, entry = table_with(ResumableState.FINISHED)
    assert entry.chat is None
    assert table.find(entry.key, DIGEST) is entry
    assert table.expire(30.0) == []
    assert table.find(entry.key, DIGEST) is None


def test_a_client_that_came_back_stops_the_clock() -> None:
    table, entry = table_with(ResumableState.DETACHED)
    table.advance(entry, ResumableInput.JOINED, 5.0)
    assert (table.next_expiry, table.num_bytes, table.num_detached) == (None, 0, 0)
    table.advance(entry, ResumableInput.LOST, 6.0)
    assert table.next_expiry == 36.0


def test_a_key_is_for_one_request() -> None:
    table, entry = table_with(ResumableState.ATTACHED)
    with pytest.raises(KeyReusedError, match="new key"):
        table.find(entry.key, b"another")
    with pytest.raises(KeyReusedError, match="another request"):
        table.by_token(entry.token, OWNER, b"another")
    assert table.by_token(entry.token, OWNER, None) is entry
    assert table.find(ChatKey(OTHER, "a"), b"another") is None
    assert table.by_token(entry.token, OTHER, DIGEST) is None


def test_a_token_serves_once_but_for_an_answer_that_was_lost() -> None:
    table, entry = table_with(ResumableState.DETACHED)

    def good(*tokens: str) -> list[bool]:
        return [table.by_token(token, OWNER, None) is entry for token in tokens]

    first = entry.token
    table.renew(entry, first, "second")
    assert good(first, "second") == [True, True], "the client may not have it"
    table.renew(entry, first, "third")
    assert good(first, "second", "third") == [True, False, True], "it had not"
    table.renew(entry, "third", "fourth")
    assert good(first, "third", "fourth") == [False, True, True], "it had, and used it"
    table.acknowledge(entry)
    assert good("third", "fourth") == [False, True]
    table.renew(entry, "", "fifth")
    assert good("fourth", "fifth") == [True, True], "it came back by its idempotency key"
    table.check_invariants()
    table.advance(entry, ResumableInput.FAILED, 1.0)
    assert good("fourth", "fifth") == [False, False]
    table.acknowledge(entry)
    table.check_invariants()


def test_of_too_many_without_clients_the_oldest_of_who_has_most_is_given_up() -> None:
    table = ChatTable[str](ResumeLimits(max_detached=3, max_detached_each=2))
    chats = [enter(table, name, share) for name, share in zip("abcde", "xxxyz", strict=True)]
    ended = [table.advance(entry, ResumableInput.LOST, 0.0) for entry in chats]
    assert ended == [[], [], ["a"], [], ["b"]]
    table.check_invariants()


def test_one_that_moves_about_counts_as_one() -> None:
    table = ChatTable[str](ResumeLimits(max_detached_each=2))
    chats = [enter(table, name, "x", f"address {name}") for name in "abc"]
    ended = [table.advance(entry, ResumableInput.LOST, 0.0) for entry in chats]
    assert ended == [[], [], ["c"]]
    table.check_invariants()


def test_bytes_are_taken_from_finished_chats_first_and_then_from_those_that_go_on() -> None:
    table = ChatTable[str](ResumeLimits(max_bytes=3 * EMPTY_BYTES + 400))
    old, running, new = (enter(table, name) for name in ("old", "running", "new"))
    table.advance(old, ResumableInput.DONE, 0.0)
    table.advance(running, ResumableInput.LOST, 1.0)
    table.advance(new, ResumableInput.DONE, 2.0)
    write(running, 100)
    assert table.grew(running) == []
    write(running, 100)
    assert table.grew(running) == [], "the oldest finished one made room"
    assert (old.state, new.state) == (ResumableState.GONE, ResumableState.FINISHED)
    write(running, 3000)
    assert table.grew(running) == ["running"]
    assert new.state is ResumableState.GONE
    table.check_invariants()
    assert table.num_bytes == 0


def test_many_names_at_one_address_do_not_push_out_who_is_elsewhere() -> None:
    table = ChatTable[str](ResumeLimits(max_bytes=64 * EMPTY_BYTES, max_detached=32))
    finished = [enter(table, f"f{n}", "a client", "home") for n in range(8)]
    detached = [enter(table, f"d{n}", "a client", "home") for n in range(8)]
    for entry in (*finished, *detached):
        write(entry, 200)
        table.advance(entry, ResumableInput.DONE if entry in finished else ResumableInput.LOST, 0.0)
    for number in range(500):
        entry = enter(table, f"x{number}", f"name {number}", "elsewhere")
        table.advance(entry, (ResumableInput.DONE, ResumableInput.LOST)[number % 2], 1.0)
        table.check_invariants()
    assert {entry.state for entry in finished} == {ResumableState.FINISHED}
    assert {entry.state for entry in detached} == {ResumableState.DETACHED}
    assert table.num_bytes > 63 * EMPTY_BYTES


def test_a_key_may_be_used_again_once_its_chat_is_gone() -> None:
    table, entry = table_with(ResumableState.GONE)
    again = enter(table, "a")
    assert table.advance(entry, ResumableInput.FAILED, 1.0) == []
    assert table.find(entry.key, DIGEST) is again
    table.check_invariants()


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "grow", "tick", "renew", "acknowledge", *ResumableInput]),
        st.integers(0, 7),
        st.integers(0, 2000),
    ),
    max_size=60,
)


def begin(
    table: ChatTable[str], entries: dict[int, ResumableChat[str]], which: int, name: str
) -> None:
    """A chat of one of eight keys begins, if the key is free."""
    share = "xy"[which % 2]
    key = ChatKey(share.encode(), str(which))
    if table.find(key, DIGEST) is None:
        eviction_key = EvictionKey("pqr"[which % 3], share)
        entries[which] = table.add(key, eviction_key, DIGEST, name, ReplayLog(), name)


@given(steps)
def test_random_histories_keep_the_books(
    history: list[tuple[str | ResumableInput, int, int]],
) -> None:
    limits = ResumeLimits(
        window_s=5, max_detached=3, max_detached_each=2, max_bytes=5 * EMPTY_BYTES
    )
    table = ChatTable[str](limits)
    entries: dict[int, ResumableChat[str]] = {}
    now, ended = 0.0, set[str]()
    for number, (step, which, amount) in enumerate(history):
        if step == "enter" or which not in entries:
            begin(table, entries, which, f"{which}#{number}")
        elif step == "grow":
            if entries[which].chat is not None:
                write(entries[which], amount)
                ended.update(table.grew(entries[which]))
        elif step in ("renew", "acknowledge"):
            if entries[which].state is not ResumableState.GONE and step == "renew":
                table.renew(
                    entries[which], entries[which].token * (amount % 2), f"{which}#{number}"
                )
            elif step == "acknowledge":
                table.acknowledge(entries[which])
        elif step == "tick":
            now += amount / 400
            ended.update(table.expire(now))
        else:
            assert isinstance(step, ResumableInput)
            ended.update(table.advance(entries[which], step, now))
        table.check_invariants()
    assert all(h.state is ResumableState.GONE for h in entries.values() if h.chat in ended)
    ended.update(table.close())
    table.check_invariants()
    assert table.next_expiry is None and table.num_bytes == 0


NUM_ORIGINS, NUM_SHARES, NUM_EACH, TOKENS_EACH = 2, 2, 2, 400
crowds = st.lists(
    st.tuples(
        st.integers(0, NUM_ORIGINS - 1),
        st.integers(0, NUM_SHARES - 1),
        st.sampled_from([ResumableInput.LOST, ResumableInput.DONE]),
        st.integers(0, TOKENS_EACH),
    ),
    min_size=16,
    max_size=40,
)


@given(
    st.lists(st.sampled_from([ResumableInput.LOST, ResumableInput.DONE]), max_size=NUM_EACH), crowds
)
def test_who_holds_no_more_than_an_equal_part_loses_nothing_to_others(
    quiet: list[ResumableInput], crowd: list[tuple[int, int, ResumableInput, int]]
) -> None:
    """Of all origins, and in its own of all shares there."""
    num_chats = NUM_ORIGINS * NUM_SHARES * NUM_EACH
    limits = ResumeLimits(
        max_bytes=num_chats * (EMPTY_BYTES + 4 * TOKENS_EACH), max_detached=num_chats
    )
    table, kept = ChatTable[str](limits), list[ResumableChat[str]]()
    for number, event in enumerate(quiet):
        kept.append(enter(table, f"quiet {number}", "quiet", "0"))
        write(kept[-1], TOKENS_EACH)
        table.advance(kept[-1], event, 0.0)
    for number, (origin, share, event, num_tokens) in enumerate(crowd):
        # The quiet one is one of its origin's shares.
        name = f"{origin}/{max(share, 1 - origin)}"
        entry = enter(table, f"{number}", name, f"{origin}")
        write(entry, num_tokens)
        table.advance(entry, event, 0.0)
        if entry.state is ResumableState.DETACHED:
            write(entry, 4 * num_tokens)
            table.grew(entry)
        table.check_invariants()
    assert all(entry.state is not ResumableState.GONE for entry in kept)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-9, 9)), max_size=60))
def test_who_holds_most(changes: list[tuple[int, int, int]]) -> None:
    ranking, amounts = UsageRanking(), dict[EvictionKey, int]()
    for origin, share, change in changes:
        key = EvictionKey(str(origin), str(share))
        before = amounts.get(key, 0)
        ranking.add(key, max(change, -before))
        amounts[key] = max(0, before + change)
        assert ranking.total == sum(amounts.values())
        if ranking.total:
            sums = dict[str, int]()
            for one, amount in amounts.items():
                sums[one.origin] = sums.get(one.origin, 0) + amount
            first = ranking.largest
            assert sums[first.origin] == max(sums.values())
            assert amounts[first] == max(a for h, a in amounts.items() if h.origin == first.origin)
