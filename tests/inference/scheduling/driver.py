"""A scheduler, the fake engine and virtual time, with every answer checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engines.fake import FakeEngine, FakeOptions
from services.inference.reference import generate
from services.inference.scheduler.batch import Plan
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Committed,
    Drafts,
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
)
from tests.inference.letters import new_reply

PROMPT = tuple(range(3, 23))


@dataclass
class Peer:
    """What the edge knows of one session: the chains it sent, the reply it rebuilt."""

    reply: list[int]
    chains: dict[int, dict[int, int]] = field(default_factory=dict)
    commits: list[Committed] = field(default_factory=list)
    opened: Opened | None = None
    finished: Finished | None = None
    failed: Failed | None = None

    def sent(self, drafts: Drafts) -> None:
        chain = self.chains.setdefault(drafts.epoch, {})
        chain.update({drafts.base + index: token for index, token in enumerate(drafts.ids)})

    def take(self, event: Event) -> None:
        assert self.finished is None and self.failed is None, "an event after the last one"
        match event:
            case Opened():
                assert self.opened is None
                self.opened = event
            case Committed():
                assert event.base == len(self.reply)
                chain = self.chains.get(event.epoch, {})
                echoed = [chain[event.base + index] for index in range(event.accepted)]
                self.reply += [*echoed, *event.ids]
                assert event.upto == len(self.reply)
                self.commits.append(event)
            case Finished():
                assert event.upto == len(self.reply) == event.usage.completion_tokens
                self.finished = event
            case Failed():
                self.failed = event


class Driver:
    """Runs a scheduler tick by tick on a clock that only calls and `now` move."""

    def __init__(
        self, options: FakeOptions | None = None, limits: SchedulerLimits | None = None
    ) -> None:
        self.engine = FakeEngine(options or FakeOptions(min_rows=2))
        self.limits = limits or SchedulerLimits()
        self.scheduler = Scheduler(self.engine.info, self.limits, new_reply)
        self.now = 100.0
        self.peers: dict[int, Peer] = {}
        self.plans: list[Plan] = []

    def open(self, request: OpenRequest) -> Peer:
        events = self.scheduler.open(request, self.now)
        peer = self.peers[request.session] = Peer(list(request.resume))
        if request.drafts is not None:
            peer.sent(request.drafts)
        self.take(events)
        return peer

    def draft(self, session: int, drafts: Drafts) -> None:
        self.peers[session].sent(drafts)
        self.scheduler.draft(session, drafts, self.now)

    def cancel(self, session: int) -> None:
        self.take(self.scheduler.cancel(session, self.now))

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self.peers[event.session].take(event)
        self.scheduler.check_invariants()

    def decide(self) -> Plan | None:
        plan = self.scheduler.decide(self.now)
        self.scheduler.check_invariants()
        if plan is not None:
            self.plans.append(plan)
            self._check_plan(plan)
        return plan

    def _check_plan(self, plan: Plan) -> None:
        assert plan.num_tokens <= self.limits.max_batch_tokens
        for part, purpose in zip(plan.rounds, plan.parts, strict=True):
            assert len(part.tokens) >= self.engine.info.min_rows
            if part.num_rows == 0:
                assert purpose.session.num_missing - len(part.tokens) >= self.engine.info.min_rows

    def run(self, plan: Plan) -> None:
        """The engine's turn, and the answer's way back."""
        rows = plan.run(self.engine, self.scheduler.study)
        self.now += self.engine.step_ms / 1e3 if plan.rounds else 0.0
        self.take(self.scheduler.apply(plan, rows, self.now))

    def tick(self) -> bool:
        """One whole turn; False when there was nothing to do."""
        self.take(self.scheduler.expire(self.now))
        plan = self.decide()
        if plan is None:
            return False
        self.run(plan)
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
    return generate(FakeEngine(options), request.prompt, request.sampling, new_reply).ids
