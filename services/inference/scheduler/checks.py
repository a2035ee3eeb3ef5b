"""What can be wrong with a request by itself."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engines.base import EngineInfo
from outrider.engines.candidates import check_sampling
from outrider.errors import EmptyPromptError, InvalidRequestError, PromptTooLongError
from services.inference.scheduler.types import OpenRequest


def check_request(request: OpenRequest, info: EngineInfo, context_limit: int) -> None:
    """Raises EmptyPromptError, InvalidRequestError (ids outside the vocabulary),
    InvalidSamplingError and PromptTooLongError."""
    if not request.prompt:
        raise EmptyPromptError("the prompt has no tokens; send at least one")
    check_ids("the prompt", request.prompt, info)
    check_ids("resume", request.resume, info)
    if request.drafts is not None:
        check_ids("a draft", request.drafts.ids, info)
    check_sampling(request.sampling, info)
    if len(request.prompt) >= context_limit:
        raise PromptTooLongError(
            f"the prompt has {len(request.prompt)} tokens, but prompt and reply together have "
            f"room for {context_limit}; shorten the prompt"
        )


def check_ids(name: str, ids: Sequence[int], info: EngineInfo) -> None:
    """Raises InvalidRequestError unless all are of the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < info.vocabulary_size):
        raise InvalidRequestError(
            f"{name} has an id outside 0 .. {info.vocabulary_size - 1}; "
            "check that both sides use the same vocabulary"
        )
