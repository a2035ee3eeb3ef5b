"""Which requests an engine can serve that returns only the likeliest ids of a row.

Everything the sampler keeps must be among the candidates, and their scores must mean the same to it
as those of a whole row. Candidates come with log probabilities: logits less a constant of the row,
to which softmax and argmax are indifferent. The engine normalised them over the whole row, so they
are returned unchanged to sessions that ask for log probabilities.
"""

from __future__ import annotations

from outrider.engines.base import EngineInfo
from outrider.errors import InvalidSamplingError
from outrider.sampling.params import SamplingParams


def num_candidates(params: SamplingParams) -> int:
    """Candidates that a row needs for these choices and their log probabilities; 0: no number is
    known to be enough."""
    if rescores(params) or params.is_constrained:
        return 0
    greedy = params.temperature == 0.0 and params.acceptance_threshold == 0.0
    to_choose_from = 1 if greedy else params.top_k
    return max(to_choose_from, params.num_logprobs) if to_choose_from else 0


def check_sampling(params: SamplingParams, info: EngineInfo) -> None:
    """Raises InvalidSamplingError for what this engine's candidates cannot decide."""
    if info.num_candidates == 0:
        return
    if params.grammar is not None:
        raise InvalidSamplingError(
            f"the engine {info.name} scores only the {info.num_candidates} likeliest ids, and the "
            "grammar may allow none of them; leave it out, or use another replica"
        )
    if params.limits_reasoning:
        raise InvalidSamplingError(
            f"the engine {info.name} scores only the {info.num_candidates} likeliest ids, and the "
            "end of reasoning may be none of them; leave max_thinking_tokens out, or use another "
            "replica"
        )
    if rescores(params):
        raise InvalidSamplingError(
            f"the engine {info.name} scores only the {info.num_candidates} likeliest ids: "
            "penalties and logit_bias could choose another; leave them out"
        )
    if params.num_logprobs > info.num_candidates:
        raise InvalidSamplingError(
            f"the engine {info.name} scores only the {info.num_candidates} likeliest ids; set "
            f"num_logprobs to at most {info.num_candidates}"
        )
    if not 1 <= num_candidates(params) <= info.num_candidates:
        raise InvalidSamplingError(
            f"the engine {info.name} scores only the {info.num_candidates} likeliest ids; set "
            f"top_k to 1..{info.num_candidates}, or temperature to 0"
        )


def rescores(params: SamplingParams) -> bool:
    """Whether the order of scores may change, so that an id outside the candidates wins."""
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
    )
