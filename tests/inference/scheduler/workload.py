"""Sessions that arrive by themselves while the engine works, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random

from outrider.engines.fake import FakeOptions
from outrider.errors import DeadlineError, OverloadedError
from services.inference.scheduler.types import Event, OpenRequest, SessionCommit
from tests.inference.scheduler.driver import Driver, Peer, reference


class Arrivals(Driver):
    """Opens every session at the first tick after its arrival, as the model thread does; notes
    when each of its commits came."""

    arrived: dict[int, float]
    commits_at: dict[int, list[float]]
    refused: dict[int, OverloadedError | DeadlineError]

    def play(self, arrivals: Iterable[tuple[float, OpenRequest]]) -> None:
        """Take (time, request) in order of time, and run until all is done."""
        self.arrived, self.commits_at, self.refused = {}, {}, {}
        queue = sorted(arrivals, key=lambda arrival: arrival[0], reverse=True)
        while queue or self.scheduler.has_work:
            while queue and queue[-1][0] <= self.now:
                self._arrive(*queue.pop())
            if not self.tick() and queue:
                self.now = max(self.now, queue[-1][0])
        self.finish()

    def _arrive(self, at: float, request: OpenRequest) -> None:
        self.arrived[request.session_id] = at
        try:
            self.open(request)
        except (OverloadedError, DeadlineError) as error:
            self.refused[request.session_id] = error

    def take(self, events: Iterable[Event]) -> None:
        events = list(events)
        for event in events:
            if isinstance(event, SessionCommit):
                self.commits_at.setdefault(event.session_id, []).append(self.now)
        super().take(events)

    def ttfts_ms(self, sessions: Iterable[int]) -> list[float]:
        """Arrival to first commit, ascending."""
        return sorted(
            (self.commits_at[session][0] - self.arrived[session]) * 1e3 for session in sessions
        )

    def intervals_ms(self, sessions: Iterable[int]) -> list[float]:
        """Between the commits of each session, ascending."""
        gaps: list[float] = []
        for session in sessions:
            times = self.commits_at[session]
            gaps += [(b - a) * 1e3 for a, b in pairwise(times)]
        return sorted(gaps)


def poisson(
    rng: Random, per_s: float, seconds: float, request: OpenRequest, begin: float = 100.0
) -> list[tuple[float, OpenRequest]]:
    """Sessions like `request`, numbered on from it, each with a prompt of its own."""
    arrivals: list[tuple[float, OpenRequest]] = []
    at = begin + rng.expovariate(per_s)
    while at < begin + seconds:
        head = tuple(rng.randrange(3, 64) for _ in range(4))
        number = request.session_id + len(arrivals)
        arrivals.append((at, replace(request, session_id=number, prompt=head + request.prompt)))
        at += rng.expovariate(per_s)
    return arrivals


def quantile(ascending: list[float], share: float) -> float:
    """By nearest rank."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def is_exact(peer: Peer, request: OpenRequest, options: FakeOptions) -> bool:
    """Whether the reply is the reference's."""
    return tuple(peer.reply) == reference(request, options)
