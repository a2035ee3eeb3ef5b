"""Why sessions went where they went, and where one would go now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

from outrider.errors import EmptyPromptError
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from services.router.placement.history import PlacementHistory, PlacementRecord
from services.router.placement.placement import Placement
from services.router.placement.types import Candidate, Decision
from services.router.relay.dispatch import PromptCache
from services.router.relay.frames import read_request

_DEFAULT_PLACEMENTS: Final = 16


class Tokenized(Protocol):
    """Token ids that a tokenizer computed from messages."""

    @property
    def ids(self) -> common_pb2.TokenBlock:
        """The prompt."""

    @property
    def vocabulary_digest(self) -> bytes:
        """Digest of the vocabulary that the ids belong to."""


class Explainer:
    """Answers the Explain call. Asks placement, and never places anything."""

    def __init__(
        self,
        placement: Placement,
        history: PlacementHistory,
        prompts: PromptCache,
        tokenize: Callable[[inference_pb2.OpenSession], Awaitable[Tokenized]],
        *,
        default_model: Callable[[], str],
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        """`clock` is the clock of the placements, `timer` measures the time of a decision; both in
        seconds."""
        self._placement = placement
        self._history = history
        self._prompts = prompts
        self._tokenize = tokenize
        self._default_model = default_model
        self._clock = clock
        self._timer = timer

    async def explain(self, request: router_pb2.ExplainRequest) -> router_pb2.ExplainResponse:
        """The latest placements, or what would be decided for `what_if`. Raises what placing that
        session would."""
        if request.HasField("what_if"):
            placed = [await self._what_if(request.what_if)]
        else:
            count = request.max_placements or _DEFAULT_PLACEMENTS
            placed = self._history.find(request.request_id, count)
        now = self._clock()
        return router_pb2.ExplainResponse(placements=[to_proto(one, now) for one in placed])

    async def _what_if(self, opening: inference_pb2.OpenSession) -> PlacementRecord:
        opening.model = opening.model or self._default_model()
        if opening.WhichOneof("prompt") == "messages":
            answer = await self._tokenize(opening)
            opening.ids.tail.CopyFrom(answer.ids)
            opening.vocabulary_digest = answer.vocabulary_digest
        now, started_s = self._clock(), self._timer()
        asked = read_request(opening, now, allows_inexact=False)
        if not asked.prompt_tokens:
            raise EmptyPromptError("the session has no prompt; send messages or token ids")
        asked = replace(asked, prompt=self._prompts.read(opening))
        decision = self._placement.decide(asked, now)
        decision_ms = (self._timer() - started_s) * 1000.0
        return PlacementRecord(
            opening.request_id, asked.model, asked.prefill_tokens, decision, now, decision_ms
        )


def to_proto(placed: PlacementRecord, now: float) -> router_pb2.Placement:
    """The wire form of a placement."""
    answer = _decision(placed.decision)
    answer.request_id, answer.model = placed.request_id, placed.model
    answer.prompt_tokens = placed.prompt_tokens
    answer.age_ms = (now - placed.at) * 1000.0
    answer.decision_ms = placed.decision_ms
    return answer


def _decision(decision: Decision) -> router_pb2.Placement:
    return router_pb2.Placement(
        chosen=_candidate(decision.chosen),
        runner_up=_candidate(decision.runner_up) if decision.runner_up else None,
        margin_ms=decision.margin_ms,
        able=decision.num_able,
        considered=[
            router_pb2.PlacementCandidate(replica=name, wait_ms=wait_ms)
            for name, wait_ms in decision.considered
        ],
    )


def _candidate(candidate: Candidate) -> router_pb2.PlacementCandidate:
    wait = candidate.wait
    return router_pb2.PlacementCandidate(
        replica=candidate.replica,
        region=candidate.region,
        wait_ms=wait.total_ms,
        rtt_ms=wait.rtt_ms,
        slot_ms=wait.slot_ms,
        memory_ms=wait.memory_ms,
        queue_ms=wait.queue_ms,
        transfer_ms=wait.transfer_ms,
        prefill_ms=wait.prefill_ms,
        cached_tokens=candidate.cached_tokens,
        model_identity=candidate.identity,
    )
