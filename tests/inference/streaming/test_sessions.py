"""Live sessions between streams and the model thread; requests that are opened again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider import errors
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.runs import later_run
from outrider.testing import eventually
from outrider.v1 import common_pb2
from outrider.wire import token_block_from_proto, token_block_to_proto
from services.inference.model_thread import ModelTick
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import KvHits, OpenRequest
from services.inference.streaming.sessions import RunningRequests
from tests.inference.harness import CODER, GatedEngine, reference, running

SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True)
PROMPT = tuple(range(3, 30))


async def test_drafts_that_find_no_room_are_counted_and_cost_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = reference(PROMPT, SAMPLING).ids
    refused: list[Draft] = []

    def refuse(session: int, drafts: Draft) -> bool:
        refused.append(drafts)
        return False

    async with running(GatedEngine()) as it:
        monkeypatch.setattr(it.replica.runner, "draft", refuse)
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        await peer.draft(1, 0, 0, truth[:4])
        await eventually(lambda: bool(refused))
        it.gated.gate.set()
        assert tuple((await peer.finish(1)).ids) == truth
        assert it.value("outrider_draft_dropped_frames_total") == len(refused) == 1


LONG = SamplingParams(max_tokens=200, ignore_eos=True)


async def test_another_request_of_a_live_id_is_refused_and_free_again_afterwards() -> None:
    async with running(GatedEngine()) as it:
        first, second = it.peer(), it.peer()
        await first.open(1, [5], request_id="same")
        await eventually(lambda: len(it.replica.table) == 1)
        await second.open(1, [6], request_id="same")
        refused = await second.finish(1)
        assert type(refused.error) is errors.DuplicateSessionError
        it.gated.gate.set()
        assert (await first.finish(1)).done is not None
        await second.open(2, [6], request_id="same")
        assert (await second.finish(2)).done is not None


async def test_the_same_request_opened_again_takes_the_place_of_the_earlier_run() -> None:
    async with running(GatedEngine()) as it:
        first, second = it.peer(), it.peer()
        await first.open(1, [5], LONG, request_id="same")
        await eventually(lambda: len(it.replica.table) == 1)
        begun = reference([5], LONG).ids[:3]
        resume, *resumed = (token_block_to_proto(CODER.encode([token])) for token in begun)
        second.replies[1].ids.extend(begun)
        await second.open(1, [5], LONG, request_id="same", resume=resume, resumed=resumed)
        ended = await first.finish(1)
        assert type(ended.error) is errors.DuplicateSessionError
        it.gated.gate.set()
        assert tuple((await second.finish(1)).ids) == reference([5], LONG).ids
        await eventually(lambda: not len(it.replica.table))
        assert not it.replica.table._running


async def test_the_later_run_has_the_place_of_the_earlier_one() -> None:
    limits = SchedulerLimits(max_sessions=1, max_queue=0)
    async with running(GatedEngine(), scheduler=limits) as it:
        first, second = it.peer(), it.peer()
        await first.open(1, [5], LONG, request_id="same", run=1)
        await eventually(it.gated.waiting.is_set)
        await second.open(1, [5], LONG, request_id="same", run=2)
        assert type((await first.finish(1)).error) is errors.DuplicateSessionError
        it.gated.gate.set()
        assert tuple((await second.finish(1)).ids) == reference([5], LONG).ids


def of_prompt(number: int, *prompt: int) -> OpenRequest:
    return OpenRequest(number, prompt, LONG)


@pytest.mark.parametrize("run", [0, 1, 2, 3])
@pytest.mark.parametrize("running", [None, 0, 1, 2, 3])
def test_every_pair_of_runs_of_a_request(running: int | None, run: int) -> None:
    """A run takes the place of the running one, unless that is known to be a later one."""
    requests, name = RunningRequests(), ("tenant", "same")
    if running is not None:
        requests.claim(name, of_prompt(1, 5), running)
    if running and 0 < run < running:
        with pytest.raises(errors.DuplicateSessionError, match="later run") as refused:
            requests.earlier(name, of_prompt(2, 5), run)
        assert later_run(refused.value) == running
    else:
        assert requests.earlier(name, of_prompt(2, 5), run) == (None if running is None else 1)
    assert requests.earlier(("other", "same"), of_prompt(2, 5), run) is None, "another tenant's"
    if running is not None:
        with pytest.raises(errors.DuplicateSessionError, match="another request") as other:
            requests.earlier(name, of_prompt(2, 6), run)
        assert not other.value.metadata, "of another request nothing is told"
        requests.release(name, 1)
    assert requests.earlier(name, of_prompt(2, 5), 1) is None, "over, whichever run it was"


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_later_run_goes_on_whichever_is_opened_last(is_late: bool) -> None:
    runs = (2, 1) if is_late else (1, 2)
    async with running(GatedEngine()) as it:
        peers = {1: it.peer(), 2: it.peer()}
        for run in runs:
            await peers[run].open(1, [5], LONG, request_id="same", run=run)
            await eventually(lambda: bool(len(it.replica.table)))
            if run == runs[0]:
                await eventually(it.gated.waiting.is_set)
        ended = await peers[1].finish(1)
        assert type(ended.error) is errors.DuplicateSessionError
        assert later_run(ended.error) == (2 if is_late else 0)
        it.gated.gate.set()
        assert tuple((await peers[2].finish(1)).ids) == reference([5], LONG).ids
        await eventually(lambda: not len(it.replica.table))
        assert not it.replica.table._running


async def test_accepted_drafts_are_told_to_who_asks() -> None:
    async with running(GatedEngine()) as it:
        truth, peer = reference([5], LONG).ids, it.peer()
        await peer.open(1, [5], LONG, drafts=(1, truth[:4]), echo_accepted=True)
        await peer.open(2, [5], LONG, drafts=(1, truth[:4]))
        it.gated.gate.set()
        asked, unasked = await peer.finish(1), await peer.finish(2)
        assert asked.num_accepted and unasked.num_accepted
        for commit in asked.commits:
            ids = truth[commit.base : commit.base + commit.accepted]
            block = token_block_from_proto(common_pb2.TokenBlock.FromString(commit.accepted_ids))
            found = CODER.decode(block, max_count=9, needs_checksum=False) if ids else ()
            assert found == ids
        assert not any(commit.accepted_ids for commit in unasked.commits)


async def test_a_request_id_is_its_tenants_own_and_free_once_it_is_cancelled() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG, request_id="same", tenant="a")
        await peer.open(2, [5], request_id="same", tenant="b")
        # Once the first call is held: a cancel that came before would be done with at once.
        await eventually(lambda: it.gated.waiting.is_set() and len(it.replica.table) == 2)
        await peer.cancel(1)
        await peer.open(3, [5], request_id="same", tenant="a")
        await eventually(lambda: len(it.replica.table) == 3)
        it.gated.gate.set()
        cancelled, *others = [(await peer.finish(number)).done for number in (1, 2, 3)]
        assert cancelled is not None
        assert cancelled.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        assert all(done is not None and done.upto for done in others)
        assert not it.replica.table._running


async def test_a_session_number_is_used_once() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG)
        await peer.open(2, [6], LONG)
        await peer.open(1, [7], LONG)
        failed = await peer.finish(1)
        assert type(failed.error) is errors.DuplicateSessionError
        it.gated.gate.set()
        assert tuple((await peer.finish(2)).ids) == reference([6], LONG).ids
        peer.replies.pop(2)
        await peer.open(2, [6], LONG)
        assert type((await peer.finish(2)).error) is errors.DuplicateSessionError
        await peer.call.done_writing()
        await eventually(it.is_clean)


async def test_every_source_of_kv_is_shown_before_anything_comes_from_it() -> None:
    async with running() as it:
        shown = [
            it.value("outrider_kv_tokens_total", tier=tier) for tier in it.replica.tiers.sources
        ]
        assert shown == [0.0] and it.replica.tiers.sources == ("peer",)
        for tier in ("device", "computed"):
            assert it.value("outrider_kv_tokens_total", tier=tier) == 0.0


async def test_prompt_tokens_are_counted_once_though_what_is_loaded_is_known_first() -> None:
    async with running() as it:
        await eventually(lambda: it.replica.table.load is not None)
        load = it.replica.table.load
        assert load is not None
        loaded = (("redis", 64), ("peer", 32))
        for hits in (
            KvHits(0, 0, (("redis", 64),)),  # a block of the store is published
            KvHits(0, 0, loaded),  # one of another replica
            KvHits(200, 128, loaded),  # the session ends, with 32 tokens of the pool
            KvHits(300, 188, loaded),  # another one, with 60 of the pool
        ):
            it.replica.table.on_tick(ModelTick((), replace(load, kv_hits=hits), 0))
        assert [
            it.value("outrider_kv_tokens_total", tier=tier)
            for tier in ("device", "peer", "redis", "computed")
        ] == [92, 32, 64, 112]
