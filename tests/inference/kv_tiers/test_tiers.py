"""What sessions tell the tiers, and in which order tiers are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.codec.kv import Payload
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from services.inference.kv_tiers.tiers import KvTier, KvTiers, Prefix
from services.inference.scheduler.types import OpenRequest
from tests.inference.kv_tiers.stubs import BLOCK, INFO, StubThread, loader_to

SIZE = INFO.block_tokens
PROMPT = tuple(n % 50 + 1 for n in range(8 * SIZE + 3))


def request(session: int = 1, prompt: tuple[int, ...] = PROMPT, **fields: object) -> OpenRequest:
    return OpenRequest(session, prompt, SamplingParams(), **fields)  # type: ignore[arg-type]


class Shelf(KvTier):
    """Has some blocks of every prompt, and wants all of those that it may be given."""

    name = "shelf"

    def __init__(self, model: StubThread, has: Sequence[int] = (), depth: int = 8) -> None:
        super().__init__()
        self._loader = loader_to(model)
        self._has = has
        self._depth = depth
        self.asked: list[range] = []
        self.saved: list[Sequence[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_closed = False

    def num_blocks(self, request: OpenRequest) -> int:
        return self._depth

    def pays(self, prefix: Prefix, missing: range, block_ms: float) -> bool:
        return True

    async def fetch(self, prefix: Prefix, missing: range, block_ms: float) -> None:
        self.asked.append(missing)
        with prefix.cancelling_fetch():
            await self.may_answer.wait()
        blocks = tuple((index, BLOCK) for index in missing if index in self._has)
        self._loader.load(prefix, blocks, self.name)

    def wants(self, prefix: Prefix) -> Sequence[int]:
        return range(len(prefix.hashes))

    async def save(self, prefix: Prefix, wanted: Sequence[int]) -> None:
        self.saved.append(wanted)

    async def close(self) -> None:
        self.is_closed = True
        self._loader.close()


async def test_the_next_tier_is_asked_for_what_the_one_before_did_not_bring() -> None:
    model = StubThread()
    near, far = Shelf(model, has=(3, 6, 7)), Shelf(model, has=range(8))
    tiers = KvTiers((near, far), SIZE)
    tiers.opened(request(), SIZE + 1, 1.0)
    await eventually(lambda: not tiers.num_transfers)
    assert near.asked == [range(1, 8)] and far.asked == [range(1, 6)]
    first, second = model.loaded
    assert [index for index, _ in first.blocks] == [3, 6, 7]
    assert [index for index, _ in second.blocks] == [1, 2, 3, 4, 5]
    assert {command.session_id for command in model.loaded} == {1}
    tiers.first_token(1)
    await eventually(lambda: not tiers.num_transfers)
    assert near.saved == far.saved == [range(8)]
    await tiers.close()
    assert near.is_closed and far.is_closed


async def test_the_block_of_the_last_token_is_never_asked_for() -> None:
    tier = Shelf(StubThread())
    tiers = KvTiers((tier,), SIZE)
    tiers.opened(request(prompt=PROMPT[: 4 * SIZE]), 0, 1.0)
    tiers.opened(request(2, PROMPT[: 4 * SIZE], resume=PROMPT[:SIZE]), 0, 1.0)
    tiers.opened(request(3, PROMPT[:SIZE]), 0, 1.0)
    await eventually(lambda: not tiers.num_transfers)
    assert tier.asked == [range(3), range(4)]
    await tiers.close()


async def test_what_comes_after_the_first_token_or_the_end_is_late() -> None:
    model = StubThread()
    tier = Shelf(model, has=range(8))
    tiers = KvTiers((tier,), SIZE)
    tier.may_answer.clear()
    tiers.opened(request(1), 0, 1.0)
    tiers.opened(request(2), 0, 1.0)
    await eventually(lambda: len(tier.asked) == 2)
    tiers.ended(1)
    tiers.first_token(2)
    await eventually(lambda: not tiers.num_transfers)  # nobody waits for an answer any more
    tiers.first_token(1)
    tiers.ended(2)
    assert not model.loaded and tier.saved == [range(8)]
    await tiers.close()


async def test_a_tier_that_leaves_all_out_does_nothing() -> None:
    class Empty(KvTier):
        name = "empty"

    empty = Empty()
    tiers = KvTiers((empty,), SIZE)
    await tiers.start()
    tiers.opened(request(), 0, 1.0)
    tiers.first_token(1)
    assert tiers.num_transfers == 0 and tiers.salts("acme") == () and not tiers._prefixes
    assert tiers.counts == {"empty": empty.counts}
    await tiers.close()


async def test_two_sessions_do_not_fetch_the_same_blocks_at_once() -> None:
    loader = loader_to()
    tiers = KvTiers((Shelf(StubThread()),), SIZE)
    tiers.opened(request(1), len(PROMPT), 1.0)
    tiers.opened(request(2), len(PROMPT), 1.0)
    tiers.opened(request(3, cache_salt=b"another group"), len(PROMPT), 1.0)
    first, second, stranger = tiers._prefixes.values()
    with loader.claim(first, (5, 4, 3)) as claimed:
        assert claimed == [5, 4, 3]
        with loader.claim(second, (6, 5, 4)) as others:
            assert others == [6]
        with loader.claim(stranger, (5,)) as theirs:
            assert theirs == [5]
    with loader.claim(second, (5,)) as again:
        assert again == [5]
    loader.close()
    await tiers.close()


async def test_a_frame_of_another_block_or_group_is_no_block() -> None:
    model = StubThread()
    model.cache(PROMPT, b"")
    loader, other = loader_to(model), loader_to(digest=b"w" * 32)
    tiers = KvTiers((Shelf(model),), SIZE)
    tiers.opened(request(1), len(PROMPT), 1.0)
    tiers.opened(request(2, cache_salt=b"another group"), len(PROMPT), 1.0)
    prefix, stranger = tiers._prefixes.values()
    (block,) = await model.export_blocks((prefix.hashes[0],))
    frame = loader.identity.pack(block, Payload.EXACT)
    assert loader.unpack(prefix, 0, frame) == BLOCK
    assert loader.unpack(prefix, 1, frame) is None
    assert loader.unpack(stranger, 0, frame) is None
    assert other.unpack(prefix, 0, frame) is None
    assert loader.unpack(prefix, 0, frame[:-1]) is None
    rounded = loader.identity.pack(block, Payload.Q8)
    assert loader.unpack(prefix, 0, rounded) is None, "its session takes exact KV"
    loader.close()
    other.close()
    await tiers.close()
