"""Whether the region is asked again for a chat that lost it, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.backoff import Backoff
from outrider.errors import (
    DeadlineError,
    DrainingError,
    DuplicateSessionError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.session.runs import UNKNOWN_RUN, later_run, next_run
from services.edge.session.events import ChatRequest, OpenRegion, RegionFailed


@dataclass(frozen=True, slots=True)
class ReopenPolicy:
    """Retries of a chat that lost its router or replica. The first one is made at once; the pauses
    before the others double, from `first_pause_s` to `max_pause_s`."""

    give_up_after_s: float = 20.0
    """A chat fails when no token came for this time after the loss; time for which this edge was
    blocked or suspended does not count."""
    first_pause_s: float = 0.05
    max_pause_s: float = 1.0


class Reopening:
    """The retries of one chat."""

    def __init__(self, policy: ReopenPolicy) -> None:
        self._policy = policy
        self._lost_at: float | None = None
        """When the chat lost its region, without the time for which this edge was blocked; None: it
        has one, or a token came since."""
        self._backoff = Backoff(policy.first_pause_s, policy.max_pause_s)
        self._num_prompt_tokens: int | None = None
        self._is_proven = False
        """Whether a token came from the replica that has the session, or had it last."""
        self._run = UNKNOWN_RUN
        """The run that the region was last asked for."""
        self._num_asked = 0
        self.again_at: float | None = None
        """When the region is asked again; None: it has been asked."""

    def ask(
        self,
        request: ChatRequest,
        prompt: tuple[int, ...] | None,
        final_ids: tuple[int, ...],
        model_identity: bytes,
        echo: int,
        passed_s: float,
    ) -> OpenRegion:
        """The action that opens a session for the rest of the reply. `model_identity` computed the
        final tokens; `passed_s`: seconds since the request came. Raises DeadlineError."""
        left_ms = request.deadline_ms
        if request.deadline_ms:
            left_ms -= round(passed_s * 1000)
            if left_ms <= 0:
                raise DeadlineError("the deadline passed before a region was asked")
        self.again_at = None
        self._run = request.run
        self._num_asked += 1
        is_proven, self._is_proven = self._is_proven, False
        resume = replace(request.resume, ids=final_ids, model_identity=model_identity)
        resumed = replace(request, resume=resume)
        return OpenRegion(resumed, prompt, left_ms, echo, is_proven=is_proven)

    def opened(self, num_prompt_tokens: int, *, has_tokens: bool) -> None:
        """The region opened the session. Raises OutriderError if the chat has final tokens and the
        prompt has another length than before: another region may shorten messages differently."""
        before, self._num_prompt_tokens = self._num_prompt_tokens, num_prompt_tokens
        if has_tokens and before not in (None, num_prompt_tokens):
            raise OutriderError(
                f"the region's prompt had {before} tokens, but has {num_prompt_tokens} where the "
                "chat was to continue; send it again"
            )

    def failed(self, loss: RegionFailed, now: float, *, has_tokens: bool) -> bool:
        """The stream to the region broke, or the region ended the session: whether it is asked
        again, at `again_at`.

        A chat without tokens is not retried after an answer of the region, unless that is draining:
        the client may prefer to ask elsewhere. A chat with tokens is retried even if the region
        was overloaded."""
        kinds: tuple[type[OutriderError], ...] = (UnavailableError, OverloadedError)
        if self._lost_at is None and not has_tokens:
            kinds = (UnavailableError,) if loss.is_cut_off else (DrainingError,)
        if not isinstance(loss.error, kinds):
            return False
        awake_at = now - loss.late_s
        lost_at = self._lost_at
        at_once = False
        if lost_at is None:
            self._lost_at = lost_at = awake_at
            self._backoff.reset()
            at_once = not isinstance(loss.error, OverloadedError)
        pause_s = 0.0 if at_once else self._next_pause_s(loss.error)
        self.again_at = now + pause_s
        return awake_at + pause_s < lost_at + self._policy.give_up_after_s

    def superseded(
        self, request: ChatRequest, error: DuplicateSessionError, now: float
    ) -> ChatRequest | None:
        """Another run of the request took the session's place, or the session was refused because
        of it. Returns the request to ask for at once, as a still later run; None: the other run is
        the one that the client reads, and the chat is over.

        The client may have come back to this edge since the region was last asked. And a run that
        this edge numbered, as its client does not, may be refused because this edge's clock is
        behind another one's: when the region is first asked, the client has just sent it."""
        if request.run > self._run:
            self.again_at = now
            return request
        later = later_run(error)
        if later and request.is_run_ours and self._num_asked == 1:
            self.again_at = now
            return replace(request, run=next_run(later, 0.0))
        return None

    def worked(self) -> None:
        """A token came."""
        self._lost_at = None
        self._is_proven = True

    def moved(self) -> None:
        """The router moved the session to another replica."""
        self._is_proven = False

    def _next_pause_s(self, error: OutriderError) -> float:
        asked_s = error.retry_delay_ms / 1e3 if isinstance(error, OverloadedError) else 0.0
        return max(self._backoff.next_s(), asked_s)
