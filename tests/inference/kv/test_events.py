"""Block events: numbering, gaps, snapshots, and that a follower always knows the truth."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.kv.events import (
    MAX_EVENT_BLOCKS,
    BlockEvent,
    BlockLedger,
    BlockRecorder,
    Removed,
    Stored,
)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


ROOT = name(0)


def chain(*numbers: int) -> Stored:
    """Blocks of these numbers, behind the first one."""
    return Stored(name(numbers[0]), tuple(map(name, numbers[1:])))


def removed(*numbers: int) -> Removed:
    return Removed(tuple(map(name, numbers)))


def replay(known: dict[bytes, bytes], events: Iterable[BlockEvent]) -> None:
    """What a router does with events: block -> parent."""
    for event in events:
        if isinstance(event, Removed):
            for block in event.hashes:
                del known[block]
            continue
        assert event.parent in known or event.parent == ROOT, "a child came before its parent"
        known.update(zip(event.hashes, (event.parent, *event.hashes), strict=False))


def test_what_belongs_together_is_one_event() -> None:
    recorder = BlockRecorder()
    recorder.stored(ROOT, name(1))
    recorder.stored(name(1), name(2))
    recorder.stored(name(1), name(3))
    recorder.removed(name(3))
    recorder.removed(name(2))
    recorder.stored(name(2), name(4))
    assert recorder.take() == (chain(0, 1, 2), chain(1, 3), removed(3, 2), chain(2, 4))
    assert recorder.take() == ()


def test_events_are_of_bounded_size() -> None:
    recorder = BlockRecorder()
    for number in range(2 * MAX_EVENT_BLOCKS + 1):
        recorder.stored(name(number), name(number + 1))
    for number in range(MAX_EVENT_BLOCKS + 1):
        recorder.removed(name(number))
    sizes = [len(event.hashes) for event in recorder.take()]
    assert sizes == [MAX_EVENT_BLOCKS, MAX_EVENT_BLOCKS, 1, MAX_EVENT_BLOCKS, 1]


def test_events_are_numbered_from_one() -> None:
    ledger = BlockLedger()
    assert ledger.next_number == 1
    assert ledger.since(1, 9) == ()
    ledger.add([chain(0, 1), chain(1, 2)])
    ledger.add([removed(2)])
    assert ledger.next_number == 4
    assert ledger.since(1, 9) == (chain(0, 1), chain(1, 2), removed(2))
    assert ledger.since(2, 1) == (chain(1, 2),)
    assert ledger.since(4, 9) == ()


@pytest.mark.parametrize("number", [0, 5, 99])
def test_numbers_that_were_never_given_are_a_gap(number: int) -> None:
    ledger = BlockLedger()
    ledger.add([chain(0, 1), chain(1, 2), removed(2)])
    assert ledger.since(number, 9) is None


def test_who_falls_behind_finds_a_gap_and_a_snapshot() -> None:
    ledger = BlockLedger(max_blocks=3)
    ledger.add([chain(0, 1, 2), chain(2, 3), removed(3)])
    assert ledger.since(1, 9) is None
    assert ledger.since(2, 9) == (chain(2, 3), removed(3))
    snapshot = ledger.snapshot()
    assert (snapshot.next_number, snapshot.chains) == (4, (chain(0, 1, 2),))
    ledger.add([chain(2, 4)])
    assert ledger.since(snapshot.next_number, 9) == (chain(2, 4),)


def test_the_last_event_is_kept_however_large() -> None:
    ledger = BlockLedger(max_blocks=1)
    ledger.add([chain(0, 1), chain(1, 2, 3, 4)])
    assert ledger.since(2, 9) == (chain(1, 2, 3, 4),)


class Cache:
    """A tree that grows and loses leaves at random, as a recorder hears of it."""

    def __init__(self) -> None:
        self.recorder = BlockRecorder()
        self.parents: dict[bytes, bytes] = {}
        self.next_block = 1

    def store(self, pick: int) -> None:
        parent = [ROOT, *self.parents][pick % (len(self.parents) + 1)]
        block = name(self.next_block)
        self.next_block += 1
        self.parents[block] = parent
        self.recorder.stored(parent, block)

    def remove(self, pick: int) -> None:
        leaves = sorted(self.parents.keys() - set(self.parents.values()))
        if leaves:
            block = leaves[pick % len(leaves)]
            del self.parents[block]
            self.recorder.removed(block)


class Reader:
    """A follower that reads when it can, and starts anew where the ledger forgot."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}
        self.wanted = 0

    def read(self, ledger: BlockLedger, max_events: int) -> None:
        events = ledger.since(self.wanted, max_events)
        if events is None:
            snapshot = ledger.snapshot()
            self.known, self.wanted, events = {}, snapshot.next_number, snapshot.chains
        else:
            self.wanted += len(events)
        replay(self.known, events)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["store", "store", "remove"]), st.integers(0, 50)),
            st.tuples(st.sampled_from(["tick", "read", "reconnect"]), st.integers(1, 5)),
        ),
        max_size=120,
    ),
    st.integers(1, 12),
)
def test_a_follower_of_any_speed_ends_with_the_truth(
    steps: list[tuple[str, int]], max_blocks: int
) -> None:
    cache, ledger, reader = Cache(), BlockLedger(max_blocks), Reader()
    for what, number in steps:
        if what == "tick":
            ledger.add(cache.recorder.take())
        elif what == "read":
            reader.read(ledger, number)
        elif what == "reconnect":
            reader = Reader()
        else:
            getattr(cache, what)(number)
    ledger.add(cache.recorder.take())
    while reader.wanted != ledger.next_number:
        reader.read(ledger, 4)
    assert reader.known == cache.parents
    assert ledger.num_stored == len(reader.known)
