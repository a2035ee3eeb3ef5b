"""Whether a chat whose region was lost is opened anew, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.errors import (
    DeadlineError,
    DrainingError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)
from services.edge.session.events import ChatRequest, OpenRegion, RegionFailed


@dataclass(frozen=True, slots=True)
class ReopenPolicy:
    """How a chat gets over the loss of its router or replica. The first try is made at once, the
    pauses before the others double."""

    give_up_after_s: float = 20.0
    """Without a token, from the loss on, in time for which this edge was awake; then it is the
    client's to send again."""
    first_pause_s: float = 0.05
    max_pause_s: float = 1.0


class Reopening:
    """How often a chat asked since its last token, and when it asks again. Times in seconds."""

    def __init__(self, policy: ReopenPolicy) -> None:
        self._policy = policy
        self._lost_at: float | None = None
        """On a clock that stands still while this edge does."""
        self._pause_s = 0.0
        self._num_lost_replicas = 0
        self._num_prompt_tokens: int | None = None
        self.again_at: float | None = None
        """When the region is asked again; None while it was asked."""

    def ask(
        self,
        request: ChatRequest,
        prompt: tuple[int, ...] | None,
        final_ids: tuple[int, ...],
        number: int,
        passed_s: float,
    ) -> OpenRegion:
        """What opens the session behind the final tokens, this long after the request came. Raises
        DeadlineError."""
        left_ms = request.deadline_ms
        if request.deadline_ms:
            left_ms -= round(passed_s * 1000)
            if left_ms <= 0:
                raise DeadlineError("the deadline passed before a region was asked")
        self.again_at = None
        resumed = replace(request, resume=replace(request.resume, ids=final_ids))
        return OpenRegion(resumed, prompt, left_ms, number, self._num_lost_replicas)

    def opened(self, num_prompt_tokens: int, *, has_tokens: bool) -> None:
        """The region took it. Raises OutriderError where its final tokens were to follow another
        prompt than before: messages may be made shorter in another way in another place."""
        before, self._num_prompt_tokens = self._num_prompt_tokens, num_prompt_tokens
        if has_tokens and before not in (None, num_prompt_tokens):
            raise OutriderError(
                f"the region's prompt had {before} tokens, but has {num_prompt_tokens} where the "
                "chat was to go on: send it again"
            )

    def failed(self, loss: RegionFailed, now: float, *, has_tokens: bool) -> bool:
        """The way to the region broke, or the region said no: whether it is asked again, at
        `again_at`. What has no tokens is not asked for again where the region had its say: the
        client may want to ask elsewhere. What has some goes on even where it was ended for want of
        room: an edge that was late reads too late."""
        kinds: tuple[type[OutriderError], ...] = (UnavailableError, OverloadedError)
        if self._lost_at is None and not has_tokens:
            kinds = (UnavailableError,) if loss.is_cut_off else (DrainingError,)
        if not isinstance(loss.error, kinds):
            return False
        self._num_lost_replicas += isinstance(loss.error, ReplicaLostError)
        awake_at = now - loss.late_s
        pause_s = self._next_pause(loss, awake_at)
        assert self._lost_at is not None
        self.again_at = now + pause_s
        return awake_at + pause_s < self._lost_at + self._policy.give_up_after_s

    def worked(self) -> None:
        """A token came."""
        self._lost_at, self._num_lost_replicas = None, 0

    def _next_pause(self, loss: RegionFailed, awake_at: float) -> float:
        if self._lost_at is None:
            self._lost_at, self._pause_s = awake_at, 0.0
            if not isinstance(loss.error, OverloadedError):
                return 0.0
        longest_s = min(2 * self._pause_s, self._policy.max_pause_s)
        self._pause_s = max(self._policy.first_pause_s, longest_s)
        asked_s = (
            loss.error.retry_delay_ms / 1e3 if isinstance(loss.error, OverloadedError) else 0.0
        )
        return max(self._pause_s, asked_s)
