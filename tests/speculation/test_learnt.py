"""Copies of what groups learnt: their file form, their bounds, and that no group gets another's."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ArtifactCorruptError
from outrider.speculation.learnt import (
    LEAST_CONFIDENCE,
    MAX_ADMITTED,
    MAX_ENTRIES_PER_ORDER,
    MAX_NUMBERS_BYTES,
    NOTHING,
    NUM_ORDERS,
    KeptGroups,
    Learnt,
    binding_of,
    check,
    from_bytes,
    name_of,
    row_of,
    to_bytes,
)
from outrider.speculation.ngram_store import NgramStore
from outrider.speculation.ngrams import keys, pack
from outrider.speculation.suffix_drafter import SuffixDrafter

BINDING = binding_of(b"vocabulary", b"model")
SIZE = 1 << 20
VALUE = st.builds(pack, st.integers(0, SIZE - 1), st.integers(LEAST_CONFIDENCE, 15))
TABLE = st.dictionaries(st.integers(0, 2**60 - 1), VALUE, max_size=20)
LEARNT = st.builds(
    Learnt,
    st.lists(TABLE, min_size=NUM_ORDERS, max_size=NUM_ORDERS).map(tuple),
    st.dictionaries(
        st.text(max_size=8),
        st.lists(st.integers(-1000, 1000).map(float), max_size=4).map(tuple),
        max_size=4,
    ),
)


@given(LEARNT)
def test_a_copy_survives_its_file_form(learnt: Learnt) -> None:
    assert from_bytes(to_bytes(learnt, BINDING), BINDING, SIZE) == learnt


@given(LEARNT, st.data())
def test_damage_is_noticed(learnt: Learnt, data: st.DataObject) -> None:
    whole = to_bytes(learnt, BINDING)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(damaged), whole[:at], whole + b"\0"):
        with pytest.raises(ArtifactCorruptError):
            check(bad, BINDING)


def test_another_models_copy_is_refused() -> None:
    data = to_bytes(NOTHING, BINDING)
    with pytest.raises(ArtifactCorruptError, match="another release or model"):
        check(data, binding_of(b"vocabulary", b"other model"))
    assert binding_of(b"ab", b"c") != binding_of(b"a", b"bc")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    data = to_bytes(Learnt(({1: pack(99, 5)},)), BINDING)
    assert from_bytes(data, BINDING, 100).tables[0] == {1: pack(99, 5)}
    with pytest.raises(ArtifactCorruptError, match="outside the vocabulary"):
        from_bytes(data, BINDING, 99)


def test_what_was_seen_once_is_left_out_and_the_most_confident_stays() -> None:
    many = {key: pack(7, 2) for key in range(MAX_ENTRIES_PER_ORDER)}
    sure = {key: pack(8, 9) for key in range(10**6, 10**6 + 100)}
    once = {key: pack(9, 1) for key in range(2 * 10**6, 2 * 10**6 + 100)}
    kept = from_bytes(to_bytes(Learnt((many | sure | once,)), BINDING), BINDING, SIZE).tables[0]
    assert len(kept) == MAX_ENTRIES_PER_ORDER
    assert set(sure) <= set(kept) and not set(once) & set(kept)
    assert set(many) & set(kept) == set(range(100, MAX_ENTRIES_PER_ORDER)), "the latest of equals"


def test_numbers_beyond_their_bound_are_left_out() -> None:
    learnt = Learnt((), {"a": [0.123456] * MAX_NUMBERS_BYTES})
    assert from_bytes(to_bytes(learnt, BINDING), BINDING, SIZE) == Learnt(({}, {}, {}))


def test_a_row_is_taken_only_where_it_can_be_right() -> None:
    numbers = {"rates": (0.5, 1.5)}
    assert row_of(numbers, "rates", 2, 0.0, 2.0) == [0.5, 1.5]
    assert row_of(numbers, "rates", 2, 0.0, 1.0) is None
    assert row_of(numbers, "rates", 3, 0.0, 2.0) is None
    assert row_of(numbers, "none", 1, 0.0, 1.0) is None


class Counted:
    """Statistics whose groups learnt what they are told."""

    def __init__(self) -> None:
        self.versions: dict[bytes, int] = {}

    def version_of(self, group: bytes) -> int:
        return self.versions.get(group, 0)

    def learnt_of(self, group: bytes) -> Learnt:
        return Learnt(({1: pack(self.versions[group], 2)}, {}, {}))


def save(kept: KeptGroups, statistics: Counted) -> list[bytes]:
    """As a process does it; the groups that were saved."""
    saved = []
    for group, learnt in kept.changed(statistics):
        kept.keep(*kept.packed(group, learnt))
        saved.append(group)
    return saved


def test_only_admitted_groups_that_learnt_something_are_copied() -> None:
    kept, statistics = KeptGroups(BINDING, SIZE, 1 << 20), Counted()
    statistics.versions = {b"lasting": 3, b"one connection": 4}
    kept.admit(b"lasting")
    kept.admit(b"silent")
    kept.admit(b"")
    assert save(kept, statistics) == [b"lasting"]
    assert save(kept, statistics) == [], "nothing new"
    statistics.versions[b"lasting"] += 1
    assert save(kept, statistics) == [b"lasting"]
    assert kept.restore(b"lasting").tables[0] == {1: pack(4, 2)}
    assert kept.restore(b"one connection") is NOTHING and kept.restore(b"") is NOTHING


def test_groups_that_were_saved_come_last_next_time() -> None:
    kept, statistics = KeptGroups(BINDING, SIZE, 1 << 20), Counted()
    for group in (b"a", b"b", b"c"):
        kept.admit(group)
        statistics.versions[group] = 1
    assert next(kept.changed(statistics))[0] == b"a"
    statistics.versions[b"a"] = 2
    assert [group for group, _ in kept.changed(statistics)] == [b"b", b"c", b"a"]


def test_groups_that_make_room_while_others_are_saved_do_not_come_back() -> None:
    kept, statistics = KeptGroups(BINDING, SIZE, 1 << 20), Counted()
    for group in (b"a", b"b"):
        kept.admit(group)
        statistics.versions[group] = 1
    saving = kept.changed(statistics)
    assert next(saving)[0] == b"a"
    for number in range(MAX_ADMITTED):
        kept.admit(b"other" + number.to_bytes(2, "big"))
    assert not list(saving)
    assert len(kept._admitted) == MAX_ADMITTED


@pytest.mark.parametrize("numbers", [b'{"x":[1' + b"0" * 400 + b"]}", b"[" * 60_000])
def test_numbers_that_no_float_or_stack_holds_are_damage(numbers: bytes) -> None:
    whole = to_bytes(NOTHING, BINDING)
    head = whole[: -len(b"{}") - 8]  # nothing follows the header but no numbers
    data = head + struct.pack("<II", len(numbers), zlib.crc32(numbers)) + numbers
    with pytest.raises(ArtifactCorruptError, match="numbers that were learnt are damaged"):
        from_bytes(data, BINDING, SIZE)


def test_copies_are_bounded_in_bytes_and_groups_in_number() -> None:
    size = len(to_bytes(Learnt(({1: pack(1, 2)}, {}, {})), BINDING))
    kept, statistics = KeptGroups(BINDING, SIZE, 3 * size), Counted()
    for number in range(2 * MAX_ADMITTED):
        group = number.to_bytes(4, "little")
        kept.admit(group)
        statistics.versions[group] = 1
    assert len(save(kept, statistics)) == MAX_ADMITTED
    assert len(kept) == 3 and kept.num_bytes == 3 * size
    latest = (2 * MAX_ADMITTED - 1).to_bytes(4, "little")
    assert kept.restore(latest) is not NOTHING


def test_names_of_copies_do_not_show_the_groups() -> None:
    names = {name_of(group, BINDING) for group in (b"a", b"b")}
    assert len(names) == 2 and all(len(name) == 32 for name in names)
    assert name_of(b"a", binding_of(b"other")) not in names


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), min_size=1, max_size=12)),
        min_size=1,
        max_size=12,
    )
)
def test_a_groups_drafts_do_not_depend_on_its_neighbours_across_a_restart(
    replies: list[tuple[int, list[int]]],
) -> None:
    """Group 0 gets the same drafts after a restart whether groups 1 and 2 were there or not."""

    def restarted(groups: set[int]) -> NgramStore:
        kept = KeptGroups(BINDING, SIZE, 1 << 20)
        store = NgramStore(restore=kept.restore)
        for group, reply in replies:
            if group in groups:
                kept.admit(bytes([group]))
                for _ in range(2):
                    one = SuffixDrafter(statistics=store.of(bytes([group])), num_prompt=1)
                    one.extend([50, *reply])
                    one.update_statistics()
        for group in groups:
            statistics = store.known(bytes([group]))
            if statistics is not None:
                kept.keep(*kept.packed(bytes([group]), statistics.learnt()))
        return NgramStore(restore=kept.restore)

    crowded, alone = restarted({0, 1, 2}), restarted({0})
    for prompt in ([50], *([50, *reply] for _, reply in replies)):
        drafts = []
        for store in (crowded, alone):
            one = SuffixDrafter(statistics=store.of(bytes([0])), num_prompt=len(prompt))
            one.extend(prompt)
            drafts.append(one.draft_after((), 8))
        assert drafts[0] == drafts[1]


def test_a_store_goes_on_where_it_stopped() -> None:
    reply = list(range(100, 140))
    kept = KeptGroups(BINDING, SIZE, 1 << 20)
    store = NgramStore(restore=kept.restore)
    for prompt in range(8):
        one = SuffixDrafter(statistics=store.of(b"a"), num_prompt=1)
        one.extend([prompt, *reply])
        one.update_statistics()
    kept.keep(*kept.packed(b"a", store.of(b"a").learnt()))
    again = NgramStore(restore=kept.restore)
    before, after = (s.of(b"a").average(sampled=False).rates for s in (store, again))
    assert after == pytest.approx(before, rel=1e-5)
    one = SuffixDrafter(statistics=again.of(b"a"), num_prompt=1)
    one.extend([77, *reply[:2]])
    assert one.draft_after((), 4).ids == tuple(reply[2:6])
    assert again.num_entries == again.of(b"a").num_counted > 0, "what was restored counts"
    assert again.of(b"b").successors(keys(reply[:4])) == []
