"""Checks requests against a model's limits (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.errors import InvalidRequestError, InvalidSamplingError, PromptTooLongError
from outrider.models.suggested_sampling import SuggestedSampling
from services.edge.session.events import ChatRequest


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits and suggestions of one model, from its definition and its vocabulary."""

    model: str
    vocabulary_size: int
    max_context_tokens: int
    suggested: SuggestedSampling | None = None
    """How the model's definition, or else its files, say to sample from it."""

    def fitted(self, request: ChatRequest) -> ChatRequest:
        """The request as this model gets it: sampled by the model's own settings where it leaves
        that to the model, and its reply no longer than the context, since a tenant's tokens are
        reserved for as much as may come. Raises what `check` raises."""
        self.check(request)
        own = {} if self.suggested is None else self.suggested.values()
        values = {name: own[name] for name in request.left_to_model if name in own}
        if request.sampling.max_tokens > self.max_context_tokens:
            values["max_tokens"] = self.max_context_tokens
        if not values:
            return request
        return replace(request, sampling=replace(request.sampling, **values))

    def check(self, request: ChatRequest) -> None:
        """Raises InvalidRequestError for a chat that is none of this model's: of ids outside its
        vocabulary, or longer than its context."""
        self._check_resume(request.resume.ids)
        raw = request.raw_prompt
        if isinstance(raw, tuple) and raw and max(raw) >= self.vocabulary_size:
            raise InvalidRequestError(
                f"the prompt has an id outside the vocabulary of {self.vocabulary_size} ids"
            )
        params = request.sampling
        for token in (*params.stop_ids, *params.logit_bias):
            if token >= self.vocabulary_size:
                raise InvalidSamplingError(
                    f"id {token} in the sampling values is outside the vocabulary of "
                    f"{self.vocabulary_size} ids"
                )

    def _check_resume(self, ids: Sequence[int]) -> None:
        if len(ids) >= self.max_context_tokens:
            raise PromptTooLongError(
                f"resume has {len(ids)} ids, the context has {self.max_context_tokens}"
            )
        if ids and max(ids) >= self.vocabulary_size:
            raise InvalidRequestError(
                f"resume has an id outside the vocabulary of {self.vocabulary_size} ids"
            )
