"""Events in order are taken, everything else asks for a snapshot."""

from __future__ import annotations

import pytest

from outrider.codec.block_hashes import root_hash
from outrider.errors import MalformedFrameError
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.prefix_index.kv_events import (
    BlocksRemoved,
    BlocksStored,
    KvEventFollower,
    SnapshotPart,
)
from tests.router.prefix_index.prompts import hashes, packed

BLOCK = 2
IDS = [1, 1, 2, 2, 3, 3]
BLOCKS = hashes(IDS, b"", BLOCK)
ROOT = root_hash(b"")


class Follow:
    """A follower of owner 0 and the index it feeds."""

    def __init__(self) -> None:
        self.index = PrefixIndex(PrefixIndexLimits())
        self.follower = KvEventFollower(self.index, 0, BLOCK)

    def num_known(self) -> int:
        """Leading blocks of IDS that the owner is known to hold."""
        steps = self.index.match(self.index.prompt(packed(IDS), b""), BLOCK, 1)
        return steps[0].num_blocks if steps else 0

    @property
    def resumes_at(self) -> tuple[int, int]:
        return self.follower.log, self.follower.next_sequence


def stored(first: int, last: int) -> BlocksStored:
    parent = BLOCKS[first - 1] if first else ROOT
    return BlocksStored(parent, BLOCKS[first:last], (last - first) * BLOCK)


@pytest.fixture
def follow() -> Follow:
    """One that took a snapshot with one block, behind which event 5 is next."""
    made = Follow()
    assert made.resumes_at == (0, 0)
    assert made.follower.apply_snapshot(7, 5, SnapshotPart([stored(0, 1)], True, True))
    return made


def test_events_go_on_behind_the_snapshot(follow: Follow) -> None:
    assert follow.num_known() == 1
    assert follow.follower.apply(7, 5, [stored(1, 3), BlocksRemoved(BLOCKS[2:])])
    assert (follow.num_known(), follow.resumes_at) == (2, (7, 7))
    assert follow.follower.apply(7, 7, [])


@pytest.mark.parametrize(("log", "sequence"), [(7, 6), (7, 4), (8, 5), (0, 0)])
def test_a_gap_or_another_log_forgets_and_wants_a_snapshot(
    follow: Follow, log: int, sequence: int
) -> None:
    assert not follow.follower.apply(log, sequence, [stored(1, 2)])
    assert (follow.num_known(), follow.resumes_at) == (0, (0, 0))


def test_a_snapshot_replaces_what_was_known(follow: Follow) -> None:
    other = hashes([9, 9], b"", BLOCK)
    assert follow.follower.apply_snapshot(
        8, 50, SnapshotPart([BlocksStored(ROOT, other, BLOCK)], True, True)
    )
    assert (follow.num_known(), follow.resumes_at) == (0, (8, 50))


def test_a_snapshot_may_come_in_parts(follow: Follow) -> None:
    take = follow.follower.apply_snapshot
    assert take(7, 9, SnapshotPart([stored(0, 1)], True, False))
    assert take(7, 9, SnapshotPart([stored(1, 2)], False, False))
    assert take(7, 9, SnapshotPart([stored(2, 3)], False, True))
    assert (follow.num_known(), follow.resumes_at) == (3, (7, 9))


def test_nothing_may_come_between_the_parts(follow: Follow) -> None:
    assert follow.follower.apply_snapshot(7, 9, SnapshotPart([stored(0, 1)], True, False))
    assert not follow.follower.apply(7, 9, [])
    assert not follow.follower.apply_snapshot(7, 9, SnapshotPart([], False, True)), (
        "its beginning is forgotten"
    )


def test_a_part_of_another_snapshot_is_refused(follow: Follow) -> None:
    assert follow.follower.apply_snapshot(7, 9, SnapshotPart([stored(0, 1)], True, False))
    assert not follow.follower.apply_snapshot(7, 10, SnapshotPart([], False, True))


def test_a_lost_connection_keeps_what_was_known(follow: Follow) -> None:
    follow.follower.interrupted()
    assert (follow.num_known(), follow.resumes_at) == (1, (7, 5))


def test_a_connection_lost_within_a_snapshot_begins_it_anew(follow: Follow) -> None:
    assert follow.follower.apply_snapshot(7, 9, SnapshotPart([stored(0, 3)], True, False))
    follow.follower.interrupted()
    assert (follow.num_known(), follow.resumes_at) == (0, (0, 0))


def test_a_last_block_that_is_not_full_is_left_out(follow: Follow) -> None:
    assert follow.follower.apply(7, 5, [BlocksStored(BLOCKS[0], BLOCKS[1:], 2 * BLOCK - 1)])
    assert follow.num_known() == 2


@pytest.mark.parametrize(
    "event",
    [
        BlocksStored(ROOT, BLOCKS, 1),
        BlocksStored(ROOT, BLOCKS, 100),
        BlocksStored(b"short", BLOCKS[:1], BLOCK),
        BlocksStored(ROOT, [b"short"], BLOCK),
        BlocksRemoved([b"short"]),
    ],
)
def test_what_no_replica_sends_is_refused(
    follow: Follow, event: BlocksStored | BlocksRemoved
) -> None:
    with pytest.raises(MalformedFrameError):
        follow.follower.apply(7, 5, [event])
