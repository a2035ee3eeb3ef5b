"""The caches of several instances, told as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes, root_hash
from services.inference.instances.prefixes import InstancePrefixes
from services.inference.kv.events import BlockEvent, BlockLedger, Removed, Stored
from services.inference.kv.pool import KvPool

BLOCK = 4
SALT = b"tenant"
IDS = list(range(3, 3 + 5 * BLOCK))


def chain(ids: list[int], first: int = 0, salt: bytes = SALT) -> Stored:
    """The blocks of `ids` from number `first` on."""
    hashes = (root_hash(salt), *block_hashes(ids, BLOCK, salt))
    return Stored(hashes[first], hashes[first + 1 :])


def test_a_block_is_stored_with_its_first_holder_and_removed_with_its_last() -> None:
    prefixes = InstancePrefixes(2, BLOCK)
    whole = chain(IDS)
    assert prefixes.take(0, [chain(IDS[: 2 * BLOCK])]) == (chain(IDS[: 2 * BLOCK]),)
    assert prefixes.take(1, [whole]) == (chain(IDS, first=2),)
    assert prefixes.take(0, [Removed(tuple(reversed(whole.hashes[:2])))]) == ()
    assert prefixes.num_stored == 5
    gone = Removed(tuple(reversed(whole.hashes)))
    assert prefixes.take(1, [gone]) == (gone,)
    assert prefixes.num_stored == 0


def test_a_prompt_is_matched_on_every_instance_under_its_salt_alone() -> None:
    prefixes = InstancePrefixes(3, BLOCK)
    prefixes.take(0, [chain(IDS[: 2 * BLOCK])])
    prefixes.take(2, [chain(IDS)])
    assert prefixes.cached(IDS, SALT) == [8, 0, 20]
    assert prefixes.cached([*IDS[:-1], 9], SALT) == [8, 0, 16]
    assert prefixes.cached(IDS[: BLOCK - 1], SALT) == [0, 0, 0]
    assert prefixes.cached(IDS, b"another") == [0, 0, 0]
    assert prefixes.cached([1, *IDS], SALT) == [0, 0, 0]


class Follower:
    """Knows blocks by events, as a router does."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes] = {}

    def take(self, events: tuple[BlockEvent, ...]) -> None:
        for event in events:
            if isinstance(event, Removed):
                for block in event.hashes:
                    del self.parents[block]
                    assert block not in self.parents.values(), "a child outlived its parent"
                continue
            assert event.parent in self.parents or event.parent == root_hash(SALT)
            for parent, block in zip((event.parent, *event.hashes), event.hashes, strict=False):
                assert block not in self.parents, "stored twice"
                self.parents[block] = parent


def computed(pool: KvPool, number: int, ids: list[int]) -> tuple[BlockEvent, ...]:
    """What a session of these ids leaves in the pool."""
    pool.open(number, ids, SALT)
    pool.grow(number, len(ids))
    pool.commit(number, ids, len(ids))
    pool.release(number)
    return pool.take_events()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 1), min_size=1, max_size=24)),
        max_size=40,
    )
)
def test_the_union_of_real_pools_is_what_a_follower_knows(
    work: list[tuple[int, list[int]]],
) -> None:
    """Small pools, so blocks are evicted all the time."""
    pools = [KvPool(8, BLOCK) for _ in range(3)]
    held: list[set[bytes]] = [set() for _ in pools]
    prefixes, ledger, follower = InstancePrefixes(len(pools), BLOCK), BlockLedger(), Follower()
    for pool in pools:
        pool.record()
    for number, (instance, ids) in enumerate(work):
        events = computed(pools[instance], number, ids)
        for event in events:
            change = held[instance].update if isinstance(event, Stored) else None
            (change or held[instance].difference_update)(event.hashes)
        union = prefixes.take(instance, events)
        follower.take(union)
        ledger.add(union)
        assert set(follower.parents) == set.union(*held)
        assert ledger.num_stored == prefixes.num_stored == len(follower.parents)
        asked = [*ids, 2]  # a pool leaves the last token to be computed, whatever it holds
        for other, match in zip(pools, prefixes.cached(asked, SALT), strict=True):
            # The pool also reuses a block's beginning.
            assert match == other.match(asked, SALT) // BLOCK * BLOCK
