"""What a turn engine cannot do, refused by name: one place, so that all engines fail alike."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.engines.turn.base import Ability, TurnEngineInfo
from outrider.errors import InvalidSamplingError, UnavailableError
from outrider.sampling.grammar import GrammarKind
from outrider.sampling.params import SamplingParams

_GRAMMARS = {
    GrammarKind.JSON_SCHEMA: Ability.JSON_SCHEMA,
    GrammarKind.JSON_OBJECT: Ability.JSON_OBJECT,
    GrammarKind.REGEX: Ability.REGEX,
    GrammarKind.LARK: Ability.LARK,
}


def check_sampling(info: TurnEngineInfo, sampling: SamplingParams, num_committed: int) -> None:
    """Raises InvalidSamplingError for a field that this engine cannot obey, and UnavailableError
    for a reply under a grammar of which `num_committed` tokens exist: grammars of these engines
    begin with what they write."""
    for ability in _needed(sampling):
        if ability not in info.abilities:
            raise InvalidSamplingError(
                f"the engine {info.name} of this replica does not know {ability.value}; "
                "leave it out",
                metadata={"engine": info.name, "field": ability.value},
            )
    if sampling.limits_reasoning:
        raise InvalidSamplingError(
            f"the engine {info.name} of this replica does not limit reasoning; leave "
            "max_thinking_tokens out",
            metadata={"engine": info.name, "field": "max_thinking_tokens"},
        )
    if sampling.grammar is not None and sampling.reasoning_tags is not None:
        raise InvalidSamplingError(
            f"the engine {info.name} of this replica has no grammar behind reasoning; leave the "
            "grammar out",
            metadata={"engine": info.name, "field": "grammar"},
        )
    if sampling.grammar is not None and num_committed:
        raise UnavailableError(
            f"the engine {info.name} of this replica cannot continue a reply under a grammar; open "
            "the session on another replica"
        )


def _needed(sampling: SamplingParams) -> Iterator[Ability]:
    """What the request asks beyond what every engine does."""
    if sampling.temperature > 0:
        # Where the likeliest id is taken, these change nothing.
        if sampling.top_k:
            yield Ability.TOP_K
        if sampling.min_p:
            yield Ability.MIN_P
    if sampling.repetition_penalty != 1:
        yield Ability.REPETITION_PENALTY
    if sampling.presence_penalty:
        yield Ability.PRESENCE_PENALTY
    if sampling.frequency_penalty:
        yield Ability.FREQUENCY_PENALTY
    if sampling.logit_bias:
        yield Ability.LOGIT_BIAS
    if sampling.num_logprobs >= 0:
        yield Ability.LOGPROBS
    if sampling.grammar is not None:
        yield _GRAMMARS[sampling.grammar.kind]
