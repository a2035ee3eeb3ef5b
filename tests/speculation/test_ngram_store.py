"""What replies of one salt teach each other, and those of two salts do not."""

from __future__ import annotations

from outrider.speculation.ngram_store import NgramStore
from outrider.speculation.ngrams import NgramPrior, keys, pack
from outrider.speculation.suffix_drafter import DraftTokens, SuffixDrafter

REPLY = list(range(100, 140))


def drafter(store: NgramStore, salt: bytes, prompt: list[int]) -> SuffixDrafter:
    made = SuffixDrafter(statistics=store.of(salt), num_prompt=len(prompt))
    made.extend(prompt)
    return made


def answer(store: NgramStore, salt: bytes, times: int = 8) -> None:
    for prompt in range(times):
        one = drafter(store, salt, [prompt])
        one.extend(REPLY)
        one.update_statistics()


def test_a_reply_is_drafted_from_another() -> None:
    store = NgramStore()
    answer(store, b"a")
    later = drafter(store, b"a", [50])
    assert later.draft_after((), 4) == DraftTokens()
    later.extend(REPLY[:2])
    assert later.draft_after((), 4).ids == tuple(REPLY[2:6])


def test_nothing_passes_between_salts() -> None:
    """Neither text nor rates: another tenant's drafts are the same as without its neighbours."""
    busy, empty = NgramStore(), NgramStore()
    answer(busy, b"a")
    for store in (busy, empty):
        answer(store, b"b", times=2)
    for count in range(len(REPLY)):
        drafts = []
        for store in (busy, empty):
            other = drafter(store, b"b", [50])
            other.extend(REPLY[:count])
            drafts.append(other.draft_after((), 8))
        assert drafts[0] == drafts[1]


def test_a_chain_ends_where_it_is_less_likely_than_asked_for() -> None:
    store = NgramStore()
    answer(store, b"g")
    later = drafter(store, b"g", [50])
    later.extend(REPLY[:3])
    whole = later.draft_after((), 8)
    cut = later.draft_after((), 8, least=whole.survival[4] + 1e-9)
    assert 0 < len(cut.ids) <= 4 < len(whole.ids) == 8
    assert cut.ids == whole.ids[: len(cut.ids)]


def test_prompts_are_not_learned() -> None:
    store = NgramStore()
    drafter(store, b"g", [*REPLY, 1])
    later = drafter(store, b"g", [50])
    later.extend(REPLY[:3])
    assert later.draft_after((), 4) == DraftTokens()


def test_the_least_recently_used_salt_is_dropped() -> None:
    store = NgramStore(max_salts=2)
    first, second = store.of(b"1"), store.of(b"2")
    assert store.of(b"1") is first
    store.of(b"3")
    assert store.of(b"1") is first
    assert store.of(b"2") is not second
    assert len(store) == 2


def test_memory_is_bounded_for_any_number_of_salts() -> None:
    store = NgramStore(max_entries=1000)
    used = list[SuffixDrafter]()
    for salt in range(50):
        used.append(drafter(store, b"%d" % salt, [salt]))
        for reader in used[-3:]:  # replies go on though their statistics are dropped
            reader.extend(range(1000 * salt, 1000 * salt + 40))
            reader.update_statistics()
        assert store.num_entries == sum(b.num_counted for _, b in store._by_salt.items()) <= 1000
        assert store.num_entries == sum(b._memory.num_entries for _, b in store._by_salt.items())
    assert 1 < len(store) < 50
    last = drafter(store, b"49", [7])
    last.extend([49_000, 49_001])
    assert last.draft_after((), 2).ids == (49_002, 49_003), "the newest is kept"


def test_replies_without_a_salt_leave_nothing() -> None:
    store = NgramStore()
    answer(store, b"")
    later = drafter(store, b"", [50])
    later.extend(REPLY[:3])
    assert later.draft_after((), 4) == DraftTokens()
    assert (len(store), store.num_entries) == (0, 0)


def test_every_salt_begins_with_the_prior() -> None:
    store = NgramStore(NgramPrior([{keys([7])[0]: pack(8, 4)}]))
    assert drafter(store, b"x", [7]).draft_after((), 1).ids == (8,)
