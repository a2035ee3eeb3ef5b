"""The state of one request for vectors, from its inputs to its last answer (pure).

Methods report an event at `now` and return the actions to take, in order. While inputs wait for a
replica that may return, `tick` has to be called at `retry_at`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from outrider.errors import (
    NoReplicaError,
    OutriderError,
    OverloadedError,
    PoisonousRequestError,
)
from outrider.peers.health import PeerState
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey
from services.router.embedding.placement import EmbeddingPlacement, estimated_tokens
from services.router.embedding.policy import EmbeddingPolicy
from services.router.embedding.request import EmbeddingRequest, PendingInput
from services.router.embedding.stats import EmbeddingStats
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica

MAX_REQUEST_INPUTS: Final = 1 << 16
RETRY_S: Final = 0.1
"""Between two looks for a replica, while one may be back soon."""
_BUSY_RETRY_MS: Final = 250


@dataclass(slots=True)
class Held:
    """Inputs without an answer, of all requests of a router."""

    num_inputs: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingFleet:
    """State and settings that all embedding requests of a router share."""

    registry: Registry
    placement: EmbeddingPlacement
    policy: EmbeddingPolicy
    autoscale: AutoscaleAdvisor
    return_s: float
    """Seconds to wait for a lost replica to return if there is no other."""
    held: Held = field(default_factory=Held)
    stats: EmbeddingStats = field(default_factory=EmbeddingStats)


@dataclass(frozen=True, slots=True)
class NewInput:
    """One input as it arrives."""

    number: int
    frame: bytes
    """A serialised EmbedInput."""
    num_bytes: int
    """Size of its text or ids."""


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send these inputs to a replica."""

    replica: Replica
    inputs: tuple[PendingInput, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """An input has no vector."""

    number: int
    error: OutriderError


@dataclass(frozen=True, slots=True)
class Done:
    """Every input has its answer."""


Step: TypeAlias = Send | Failed | Done


class RequestMachine:
    """State machine of one request."""

    def __init__(self, fleet: EmbeddingFleet, model: str, residency: Collection[str]) -> None:
        self.model = model
        self.identity = b""
        """Model identity that computes its vectors; empty: no vector was sent yet."""
        self.num_tokens = 0
        """Tokens of the inputs that have vectors."""
        self._fleet = fleet
        self._residency = residency
        self._request = EmbeddingRequest(MAX_REQUEST_INPUTS, fleet.policy.max_lost_replicas)
        self._waiting: list[tuple[PendingInput, ...]] = []
        """Parts that no replica takes now."""
        self._max_tokens = fleet.registry.longest_context(model)
        self._is_over = False
        self.retry_at: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether every input has its answer."""
        return self._request.is_done

    def add(self, inputs: Iterable[NewInput], now: float) -> list[Step]:
        """Add inputs. Raises OverloadedError or MalformedFrameError; the request then has to be
        closed."""
        held, policy = self._fleet.held, self._fleet.policy
        added: list[PendingInput] = []
        for given in inputs:
            size = len(given.frame)
            if held.num_inputs >= policy.max_inputs or held.num_bytes + size > policy.max_bytes:
                raise OverloadedError(
                    "this router already has the most inputs to embed that it may hold; try "
                    "again in a moment",
                    retry_delay_ms=_BUSY_RETRY_MS,
                )
            tokens = estimated_tokens(given.num_bytes, self._max_tokens)
            added.append(self._request.add(given.number, given.frame, tokens))
            held.num_inputs += 1
            held.num_bytes += size
        return self._placed(added, now)

    def no_more_inputs(self) -> list[Step]:
        """The peer has sent all."""
        self._request.is_whole = True
        return self._ending()

    def answered(
        self, replica: str, numbers: Sequence[int], num_tokens: int, now: float
    ) -> list[Step]:
        """A replica has made vectors of these inputs. Raises MalformedFrameError for inputs that it
        has not got; then none is answered."""
        found = self._request.answered(numbers, replica)
        self.num_tokens += num_tokens
        self._fleet.stats.answered(self.model, len(found), num_tokens)
        self._timed(replica, found, now)
        for each in found:
            self._settle(each)
        return self._ending()

    def failed_at(self, replica: str, number: int) -> list[Step]:
        """Record that a replica has no vector for an input; the reason is passed on unchanged.
        Raises the errors of `answered`."""
        for each in self._request.answered([number], replica):
            self._fleet.stats.failed(self.model, 1)
            self._settle(each)
        return self._ending()

    def lost(self, replica: str, now: float, *, had_them: bool) -> list[Step]:
        """A replica's call has ended before all inputs were answered. `had_them`: whether it may
        have seen them."""
        anew, spent = self._released(replica, had_them=had_them)
        error = PoisonousRequestError(
            f"{self._fleet.policy.max_lost_replicas} replicas were lost while they computed "
            "this request; it is not tried again"
        )
        self._fleet.stats.moved(self.model, len(anew))
        return [*self._given_up(spent, error), *self._placed(anew, now), *self._ending()]

    def refused(self, replica: str, error: OutriderError) -> list[Step]:
        """A replica does not take the request: nor would another one."""
        anew, spent = self._released(replica, had_them=True)
        return [*self._given_up([*anew, *spent], error), *self._ending()]

    def tick(self, now: float) -> list[Step]:
        """Time has passed: inputs that wait are tried again, also where they were lost before."""
        waiting, self._waiting = self._waiting, []
        steps: list[Step] = []
        for part in waiting:
            try:
                steps.append(self._sent(part, now, anywhere=True))
            except NoReplicaError as error:
                for each in part:
                    each.unreached.clear()  # these are tried again the next time
                steps += self._kept(part, error, now)
            except OutriderError as error:
                steps += self._given_up(part, error)
        self.retry_at = now + RETRY_S if self._waiting else None
        return [*steps, *self._ending()]

    def close(self) -> None:
        """The request is over, or its edge is gone: nothing of it is held any more."""
        for each in self._request.pending:
            self._request.given_up(each.number)
            self._settle(each)
        self._waiting.clear()
        self.retry_at = None
        self._is_over = True

    def _placed(self, inputs: Sequence[PendingInput], now: float) -> list[Step]:
        """Place inputs in parts, each on a replica now or once there is one again."""
        size, steps = self._fleet.policy.part_inputs, list[Step]()
        for begin in range(0, len(inputs), size):
            part = tuple(inputs[begin : begin + size])
            try:
                steps.append(self._sent(part, now))
            except NoReplicaError as error:
                self._fleet.stats.short(self.model)
                if self._may_return(now):
                    steps += self._kept(part, error, now)
                else:
                    steps += self._given_up(part, error)
            except OutriderError as error:
                steps += self._given_up(part, error)
        return [*steps, *self._ending()] if steps else steps

    def _kept(
        self, part: tuple[PendingInput, ...], error: NoReplicaError, now: float
    ) -> list[Step]:
        """No replica takes them now: they wait, but for those that have waited long enough."""
        over, left = list[PendingInput](), list[PendingInput]()
        for each in part:
            if each.waits_until is None:
                each.waits_until = now + self._fleet.return_s + 2 * RETRY_S
            (left if now < each.waits_until else over).append(each)
        if left:
            self._waiting.append(tuple(left))
            self.retry_at = now + RETRY_S
        return self._given_up(over, error)

    def _sent(self, part: tuple[PendingInput, ...], now: float, *, anywhere: bool = False) -> Send:
        """Raises UnknownModelError, NoReplicaError."""
        total = sum(each.num_tokens for each in part)
        exclude = {name for each in part for name in each.unreached}
        if not anywhere:
            exclude.update(name for each in part for name in each.lost)
        replica = self._fleet.placement.choose(
            self._fleet.registry,
            self.model,
            total,
            identity=self.identity,
            residency=self._residency,
            exclude=exclude,
        )
        self.identity = self.identity or replica.model_identity
        self._request.placed(part, replica.name, now)
        self._fleet.placement.sent(replica.name, total)
        return Send(replica, part)

    def _may_return(self, now: float) -> bool:
        """Whether one may be there soon; one that was never reached counts while it is tried for
        the first time."""
        return any(
            it.takes_sessions
            or it.state is PeerState.CONNECTING
            or it.may_return(self._fleet.return_s, now)
            for it in self._fleet.registry
            if it.model_name in ("", self.model)
        )

    def _released(
        self, replica: str, *, had_them: bool
    ) -> tuple[list[PendingInput], list[PendingInput]]:
        anew, spent = self._request.lost(replica, had_them=had_them)
        total = sum(each.num_tokens for each in (*anew, *spent))
        self._fleet.placement.settled(replica, total)
        return anew, spent

    def _given_up(self, inputs: Iterable[PendingInput], error: OutriderError) -> list[Step]:
        steps: list[Step] = []
        for each in inputs:
            if self._request.given_up(each.number) is not None:
                self._fleet.stats.failed(self.model, 1)
                self._settle(each)
                steps.append(Failed(each.number, error))
        return steps

    def _settle(self, each: PendingInput) -> None:
        held = self._fleet.held
        held.num_inputs -= 1
        held.num_bytes -= len(each.frame)
        if each.replica:
            self._fleet.placement.settled(each.replica, each.num_tokens)

    def _timed(self, name: str, found: Iterable[PendingInput], now: float) -> None:
        """The longest wait of an answer, for the number of replicas that there should be."""
        replica = self._fleet.registry.find(name)
        if replica is None:
            return
        waited_ms = (now - min((each.sent_at for each in found), default=now)) * 1e3
        self._fleet.autoscale.record_ttft(
            FleetKey(replica.region, self.model),
            waited_ms,
            now,
            prompt_ms=0.0,
            round_trip_ms=replica.rtt.smoothed_ms,
        )

    def _ending(self) -> list[Step]:
        """Once."""
        if self._is_over or not self._request.is_done:
            return []
        self._is_over = True
        return [Done()]
