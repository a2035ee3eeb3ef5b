"""Our router with the rest of what autoscaling needs: the advisor, fed as `Intake` feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.scale.demand import Ask
from bench.scale.regions import Region
from bench.scale.routers import MODEL, MeshRouter, Report
from outrider.errors import OutriderError, OverloadedError
from services.router.admission.policy import WakeUpPolicy
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, fleet_usage
from services.router.autoscale.policy import AutoscalePolicy
from services.router.placement.types import Decision
from services.router.relay.intake import CAPACITY_CAUSES
from services.router.session_request import SessionRequest


class ScaledRouter(MeshRouter):
    """The router of one region; it wakes replicas for chats that come while there is none."""

    def __init__(
        self, own: Region, regions: Sequence[Region], seed: int, policy: AutoscalePolicy
    ) -> None:
        super().__init__(own, regions, seed, wake_up=WakeUpPolicy((MODEL.name,)))
        self._key = FleetKey(own.name, MODEL.name)
        self._policy = policy
        self._advisor = AutoscaleAdvisor(policy, [MODEL.name])
        self._opened_at: dict[int, float] = {}
        self._prompt_ms: dict[int, float] = {}

    @property
    def num_waiting(self) -> int:
        """Chats in the queue."""
        return sum(self._admission.num_waiting().values())

    def advise(self, now: float) -> int:
        """The figure that a router exports; called once a second."""
        usage = fleet_usage(
            self._registry, {self._key: self.num_waiting}, self._policy.slo_ttft_ms, [self._key]
        )
        return self._advisor.advise(usage, now)[self._key].desired_replicas

    def first_token(self, ask: Ask, now: float) -> None:
        """Its first token passed here."""
        number = ask.number
        rtt_ms = self._registry[self._on[number]].rtt.smoothed_ms
        self._advisor.record_ttft(
            self._key,
            (now - self._opened_at[number]) * 1e3,
            now,
            prompt_ms=self._prompt_ms[number],
            round_trip_ms=rtt_ms,
        )

    def refused(self, error: OutriderError, now: float) -> None:
        """A chat was refused."""
        if isinstance(error, OverloadedError) and error.metadata.get("cause") in CAPACITY_CAUSES:
            self._advisor.record_shortage(self._key, now)

    def drain(self, report: Report, now: float) -> None:
        """A replica says that it takes no chats any more."""
        self.report([replace(report, load=replace(report.load, draining=True))], now)
        self._fleet_view.refresh(self._registry, now)

    def place(self, ask: Ask, now: float) -> str | None:
        self._opened_at[ask.number] = now
        try:
            return super().place(ask, now)
        except OutriderError:
            del self._opened_at[ask.number]
            raise

    def release(self, ask: Ask, now: float) -> None:
        del self._opened_at[ask.number]
        self._prompt_ms.pop(ask.number, None)
        super().release(ask, now)

    def _request(self, ask: Ask) -> SessionRequest:
        return SessionRequest(
            MODEL.name,
            MODEL.vocabulary_digest,
            len(ask.prompt),
            num_committed=max(ask.committed, int(ask.num_places > 0)),
            max_tokens=ask.reply_tokens,
            call_key=ask.number,
        )

    def _put(self, number: int, decision: Decision, now: float) -> str:
        self._prompt_ms[number] = decision.wait.idle_prefill_ms
        return super()._put(number, decision, now)
