"""What a replica returns so that an edge can time the round trip, and what it says of its pace."""

from __future__ import annotations

import time

from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from tests.inference.harness import GatedEngine, details_of, opening, running

SAMPLING = SamplingParams(max_tokens=6, ignore_eos=True)


async def test_numbers_come_back_once_with_the_time_they_were_held() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        frame, began = opening([5, 6], SAMPLING, echo=9), time.monotonic()
        await peer.send(inference_pb2.SessionUp(session=1, open=frame))
        opened = (await peer.next(1)).opened
        assert (opened.echo, opened.max_drafts) == (9, 8)
        assert 0 < opened.ack_delay_ms <= (time.monotonic() - began) * 1e3
        await eventually(it.gated.waiting.is_set)
        for number in (11, 12):
            draft = inference_pb2.Draft(epoch=number, base=50, echo=number)
            await peer.send(inference_pb2.SessionUp(session=1, draft=draft))
        await eventually(
            lambda: next(iter(it.replica.table._live.values())).commit_echo.number == 12
        )
        it.gated.gate.set()
        reply = await peer.finish(1)
        echoes = [details_of(commit).pace.echo for commit in reply.commits]
        assert echoes[0] == 12, "the newest one, as that is the one whose answer this is"
        assert not any(echoes[1:])
        assert details_of(reply.commits[0]).pace.ack_delay_ms > 0
        assert details_of(reply.commits[-1]).pace.ack_delay_ms == 0


async def test_who_wants_nothing_back_gets_nothing() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [5, 6], SAMPLING)
        reply = await peer.finish(1)
        assert reply.opened is not None and reply.opened.echo == 0
        assert reply.opened.ack_delay_ms == 0
        assert all(details_of(commit).pace.echo == 0 for commit in reply.commits)
        paces = [details_of(it).pace for it in reply.commits if it.details]
        assert paces[-1].commit_interval_ms > 0
        assert {(pace.max_lead, pace.overload_level) for pace in paces} == {(64, 0)}
