"""KV that is copied before a session comes: in turns, bounded, and given up where there is no
room."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.codec.kv import Payload
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.inference.kv.pool import NamedBlock
from services.inference.kv_peers.ahead import MAX_WAITING, KvAhead
from services.inference.kv_tiers.tiers import KeepRequest
from services.inference.kv_transfer import ExportedBlock
from services.inference.scheduler.types import KvHolder
from tests.inference.kv_tiers.stubs import BLOCK, INFO, StubThread, loader_to

SIZE = INFO.block_tokens
NUM_BLOCKS = 10
IDS = tuple(n % 25 + 1 for n in range(NUM_BLOCKS * SIZE + 1))
HOLDER = KvHolder("other", "here", "h:1", len(IDS))


class Pool(StubThread):
    """Keeps what comes, in order and up to `room` blocks."""

    def __init__(self, room: int | None = NUM_BLOCKS) -> None:
        super().__init__()
        self.room = room
        self.kept: dict[bytes, int] = {}
        """Number of leading blocks by salt."""
        self.salts: list[bytes] = []
        """Of the prefixes that were begun, in order."""

    async def keep_blocks(
        self, cache_salt: bytes, ids: tuple[int, ...], blocks: tuple[tuple[int, bytes], ...] = ()
    ) -> int | None:
        if self.room is None:
            return None
        if not blocks:
            self.salts.append(cache_salt)
        have = self.kept.get(cache_salt, 0)
        for index, data in blocks:
            assert data == BLOCK
            if index == have < self.room:
                have += 1
        self.kept[cache_salt] = have
        return have


class Holder:
    """Another replica, which has the first `num_blocks` blocks of every prefix."""

    def __init__(self, num_blocks: int = NUM_BLOCKS, *, lies: bool = False) -> None:
        self.num_blocks = num_blocks
        self.lies = lies
        self.asked: list[int] = []
        """How many blocks were asked for at once."""
        self.num_lies = 0
        self._identity = loader_to().identity

    async def frames(
        self, holder: KvHolder, hashes: Sequence[bytes]
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        assert holder == HOLDER
        self.asked.append(len(hashes))
        for salt in (b"a", b"b", b"c"):
            names = list(block_hashes(IDS, SIZE, salt))
            for place, name in enumerate(hashes):
                if name not in names[: self.num_blocks]:
                    continue
                index = names.index(name)
                parent = names[index - 1] if index else root_hash(salt)
                ids = IDS[index * SIZE : (index + 1) * SIZE]
                named = NamedBlock(name, parent, ids[::-1] if self.lies else ids, index)
                yield place, self._identity.pack(ExportedBlock(named, BLOCK), Payload.EXACT)

    def lied(self, holder: KvHolder) -> None:
        self.num_lies += 1


def ahead_of(pool: Pool, holder: Holder) -> tuple[KvAhead, Metrics]:
    metrics = Metrics("inference")
    return KvAhead(loader_to(pool), holder.frames, holder.lied, metrics), metrics


def counted(metrics: Metrics, result: str) -> float:
    name = "outrider_kv_ahead_blocks_total"
    return metrics.registry.get_sample_value(name, {"result": result}) or 0.0


def has_some(metrics: Metrics, result: str) -> bool:
    return counted(metrics, result) > 0


def request(salt: bytes = b"a", session: int = 1) -> KeepRequest:
    return KeepRequest(session, salt, IDS, HOLDER)


async def test_what_is_missing_comes_a_few_blocks_at_a_time() -> None:
    pool, holder = Pool(), Holder()
    pool.kept[b"a"] = 3
    ahead, metrics = ahead_of(pool, holder)
    ahead.put(request())
    await eventually(lambda: pool.kept[b"a"] == NUM_BLOCKS)
    await eventually(lambda: counted(metrics, "kept") == NUM_BLOCKS - 3)
    assert holder.asked == [4, 3]
    await ahead.close()
    metrics.close()


async def test_it_ends_where_the_other_replica_or_the_pool_has_no_more() -> None:
    for pool, holder, kept, result in (
        (Pool(), Holder(num_blocks=5), 5, "missing"),
        (Pool(room=6), Holder(), 6, "dropped"),
        (Pool(room=None), Holder(), 0, "dropped"),
        (Pool(), Holder(lies=True), 0, "refused"),
    ):
        ahead, metrics = ahead_of(pool, holder)
        ahead.put(request())
        await eventually(partial(has_some, metrics, result))
        assert counted(metrics, "kept") == pool.kept.get(b"a", 0) == kept
        assert holder.num_lies == int(holder.lies)
        await ahead.close()
        metrics.close()


async def test_trust_groups_take_turns_and_the_one_that_has_most_waiting_gives_way() -> None:
    pool, holder = Pool(), Holder()
    ahead, metrics = ahead_of(pool, holder)
    ahead.put(request(b"b"))
    for session in range(3 * MAX_WAITING):
        ahead.put(request(b"a", session))
    ahead.put(request(b"b", 1))
    ahead.put(request(b"c"))
    assert len(ahead) == MAX_WAITING, "nothing has run yet"
    assert {salt for salt, _ in ahead._waiting} == {b"a", b"b", b"c"}
    await eventually(lambda: not len(ahead) and len(pool.salts) == MAX_WAITING)
    assert pool.salts[:3] == [b"b", b"a", b"c"]
    dropped = counted(metrics, "dropped") / NUM_BLOCKS
    assert dropped == 3 * MAX_WAITING + 2 - MAX_WAITING
    await ahead.close()
    metrics.close()
