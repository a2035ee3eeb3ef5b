"""Live sessions between streams and the model thread."""

from __future__ import annotations

from outrider.sampling.params import SamplingParams
from services.inference.scheduler.types import Drafts, OpenRequest
from services.inference.streaming.sessions import Model
from tests.inference.harness import reference, running

SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True)
PROMPT = tuple(range(3, 30))


class Busy:
    """A model thread with no room for drafts; all else gets through."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.num_refused = 0

    def open(self, request: OpenRequest) -> None:
        self._model.open(request)

    def draft(self, session: int, drafts: Drafts) -> bool:
        self.num_refused += 1
        return False

    def cancel(self, session: int) -> None:
        self._model.cancel(session)


async def test_drafts_that_find_no_room_are_counted_and_cost_no_token() -> None:
    truth = reference(PROMPT, SAMPLING).ids
    async with running() as it:
        busy = Busy(it.replica.runner)
        it.replica.table.attach(busy)
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING)
        await peer.draft(1, 0, 0, truth[:4])
        assert tuple((await peer.finish(1)).ids) == truth
        dropped = it.metrics.registry.get_sample_value("outrider_draft_dropped_frames_total")
        assert dropped == busy.num_refused == 1
