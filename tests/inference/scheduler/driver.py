"""A scheduler, the fake engine and virtual time, with every answer checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.session.region import Commit, Draft
from outrider.session.types import Usage
from outrider.speculation.learnt import KeptGroups
from services.inference.reference import generate
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    SessionCommit,
)
from tests.inference.letters import constraint_of, new_reply

PROMPT = tuple(range(3, 23))
LONG = SamplingParams(max_tokens=40, ignore_eos=True)
OPTIONS = FakeOptions(min_rows=2, block_tokens=4, fixed_ms=8.0, row_ms=1.0)


def request(session: int = 1, prompt: tuple[int, ...] = PROMPT, **changes: object) -> OpenRequest:
    fields: dict[str, object] = {"sampling": LONG, "region_drafts": False}
    return OpenRequest(session, prompt, **(fields | changes))  # type: ignore[arg-type]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts without a common prefix."""
    return [(3 + number, *PROMPT) for number in range(count)]


@dataclass
class Peer:
    """What the edge knows of one session: the chains it sent, the reply it rebuilt."""

    reply: list[int]
    chains: dict[int, dict[int, int]] = field(default_factory=dict)
    offered: set[tuple[int, int]] = field(default_factory=set)
    """Number of the reply's token, and the id drafted for it in any chain at any time."""
    num_frames: int = 0
    commits: list[Commit] = field(default_factory=list)
    last: SessionCommit | None = None
    opened: Opened | None = None
    finished: Finished | None = None
    failed: Failed | None = None

    def sent(self, drafts: Draft) -> None:
        placed = {drafts.base + index: token for index, token in enumerate(drafts.ids)}
        self.chains.setdefault(drafts.epoch, {}).update(placed)
        self.offered |= placed.items()
        self.num_frames += 1

    def take(self, event: Event) -> None:
        assert self.finished is None and self.failed is None, "an event after the last one"
        match event:
            case Opened():
                assert self.opened is None
                self.opened = event
            case SessionCommit(commit=commit):
                assert commit.base == len(self.reply)
                chain = self.chains.get(commit.epoch, {})
                echoed = [chain[commit.base + index] for index in range(commit.accepted)]
                self.reply += [*echoed, *commit.ids]
                assert commit.upto == len(self.reply)
                self.commits.append(commit)
                self.last = event
            case Finished():
                assert event.upto == len(self.reply) == event.usage.completion_tokens
                self._check_counts(event.usage)
                self.finished = event
            case Failed():
                self.failed = event

    def _check_counts(self, usage: Usage) -> None:
        """Each token has one source, and the calls add up."""
        assert min(usage.sources) >= 0 and sum(usage.sources) == usage.completion_tokens
        if self.num_frames < 2:
            assert usage.sources.edge <= sum(it.accepted for it in self.commits)
        # A chain that a later frame replaced, contradicted or left a gap behind during the call
        # counts, though the commit could not refer to it.
        assert usage.sources.edge <= sum(it in self.offered for it in enumerate(self.reply))
        assert usage.draft_tokens == sum(it.drafted * it.calls for it in usage.acceptance)
        assert usage.accepted_tokens == sum(it.accepted * it.calls for it in usage.acceptance)
        assert all(it.accepted <= it.drafted for it in usage.acceptance)


_ALL_OF = 100
_ONE_OF = 10


class Driver:
    """Runs a scheduler tick by tick on a clock that only calls and `now` move."""

    def __init__(
        self,
        options: FakeOptions | None = None,
        limits: SchedulerLimits | None = None,
        kept: KeptGroups | None = None,
        *,
        engine: FakeEngine | None = None,
        is_thorough: bool = False,
    ) -> None:
        """`engine` is in place of one with these options. `is_thorough`: the invariants are
        looked at after every step of however long a run."""
        self.engine = engine or FakeEngine(options or FakeOptions(min_rows=2))
        self.limits = limits or SchedulerLimits()
        self.scheduler = Scheduler(self.engine.info, self.limits, new_reply, kept=kept)
        self.now = 100.0
        self.peers: dict[int, Peer] = {}
        self.batches: list[Batch] = []
        self._is_thorough = is_thorough
        self._num_steps = 0

    def open(self, request: OpenRequest) -> Peer:
        request = replace(request, constraint=constraint_of(request.sampling, request.prompt))
        events = self.scheduler.open(request, self.now)
        peer = self.peers[request.session_id] = Peer(list(request.resume))
        if request.drafts is not None:
            peer.sent(request.drafts)
        self.take(events)
        return peer

    def draft(self, session: int, drafts: Draft) -> None:
        self.peers[session].sent(drafts)
        self.scheduler.draft(session, drafts, self.now)

    def cancel(self, session: int) -> None:
        self.take(self.scheduler.cancel(session, self.now))

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self.peers[event.session_id].take(event)
        self._check_invariants()

    def _check_invariants(self) -> None:
        """After each step of a short run; later now and then: they take longer than the steps."""
        self._num_steps += 1
        if self._is_thorough or self._num_steps < _ALL_OF or not self._num_steps % _ONE_OF:
            self.scheduler.check_invariants()

    def schedule(self) -> Batch | None:
        batch = self.scheduler.schedule(self.now)
        self._check_invariants()
        if batch is not None:
            self.batches.append(batch)
            self._check_batch(batch)
        return batch

    def _check_batch(self, batch: Batch) -> None:
        assert batch.num_tokens <= self.limits.max_batch_tokens
        for part, purpose in zip(batch.slices, batch.scheduled, strict=True):
            assert len(part.tokens) >= self.engine.info.min_rows
            if part.num_rows == 0:
                assert (
                    purpose.session.num_uncomputed - len(part.tokens) >= self.engine.info.min_rows
                )

    def run(self, batch: Batch) -> None:
        """The engine's turn, and the answer's way back."""
        rows = batch.run(self.engine, self.scheduler.overlapped_work)
        self.now += self.engine.step_ms / 1e3 if batch.slices else 0.0
        self.take(self.scheduler.postprocess(batch, rows, self.now))

    def tick(self) -> bool:
        """One whole turn; False when there was nothing to do."""
        self.take(self.scheduler.expire(self.now))
        batch = self.schedule()
        if batch is None:
            return False
        self.run(batch)
        return True

    def finish(self, max_ticks: int = 5000) -> None:
        """Run until nothing is left to do, and check that nothing is left behind."""
        for _ in range(max_ticks):
            if not self.tick():
                break
        else:
            raise AssertionError(f"not done after {max_ticks} ticks")
        assert not self.scheduler.has_work
        load = self.scheduler.load()
        assert load.kv_blocks_free == load.kv_blocks_total
        assert load.running_sessions == load.queued_sessions == 0
        assert not self.engine._opened, "the engine still has open sequences"


def reference(request: OpenRequest, options: FakeOptions) -> tuple[int, ...]:
    """The reply of an engine of its own: no scheduler, no drafts, one token at a time."""
    sampling = request.sampling
    constraint = constraint_of(sampling, request.prompt)
    return generate(
        FakeEngine(options), request.prompt, sampling, new_reply, constraint=constraint
    ).ids
