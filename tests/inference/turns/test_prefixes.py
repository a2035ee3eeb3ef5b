"""Names of what a turn engine has cached, by its word and by what it was given."""

from __future__ import annotations

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.engines.turn.base import BlocksCleared, BlocksRemoved, BlocksStored
from services.inference.kv.events import BlockLedger, Removed, Stored
from services.inference.turns.prefixes import CachedPrefixes

IDS = tuple(range(12))
NAMES = tuple(block_hashes(IDS, 4, b"salt"))
OTHERS = tuple(block_hashes(IDS, 4, b"other"))


def test_the_engines_names_become_ours() -> None:
    cached = CachedPrefixes(4)
    cached.told(BlocksStored(b"salt", b"", (b"x", b"y"), IDS[:8]))
    cached.told(BlocksStored(b"salt", b"y", (b"z",), IDS[8:]))
    assert cached.take() == (Stored(root_hash(b"salt"), NAMES),)
    cached.told(BlocksRemoved((b"z", b"unknown")))
    assert cached.take() == (Removed(NAMES[2:]),)
    cached.told(BlocksCleared())
    (removed,) = cached.take()
    assert set(removed.hashes) == set(NAMES[:2])


def test_blocks_behind_unknown_ones_are_left_out_and_none_comes_twice() -> None:
    cached = CachedPrefixes(4)
    cached.told(BlocksStored(b"salt", b"never told", (b"x",), IDS[:4]))
    assert cached.take() == ()
    for _ in range(2):
        cached.told(BlocksStored(b"salt", b"", (b"x",), IDS[:4]))
    assert cached.take() == (Stored(root_hash(b"salt"), NAMES[:1]),)


def test_what_an_engine_was_given_is_taken_to_be_cached_by_trust_group() -> None:
    cached = CachedPrefixes(4, num_blocks=8)
    cached.given(IDS, b"salt")
    cached.given(IDS, b"salt")
    assert cached.take() == (Stored(root_hash(b"salt"), NAMES),)
    cached.given(IDS[:5], b"other")
    assert cached.take() == (Stored(root_hash(b"other"), OTHERS[:1]),)


def test_no_more_than_the_engine_has_blocks_and_ends_of_prompts_go_first() -> None:
    cached, ledger = CachedPrefixes(4, num_blocks=3), BlockLedger()
    cached.given(IDS, b"salt")
    cached.given(IDS[:4], b"other")
    ledger.add(cached.take())
    kept = {name for chain in ledger.snapshot().chains for name in chain.hashes}
    assert kept == {*NAMES[:2], OTHERS[0]}
