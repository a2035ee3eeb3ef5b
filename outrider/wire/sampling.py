"""Sampling values on the wire. An unset optional field means the default of SamplingParams."""

from __future__ import annotations

from outrider.sampling.params import SamplingParams, check_counts
from outrider.v1 import common_pb2

DEFAULT_MAX_TOKENS = 256


def to_proto(params: SamplingParams) -> common_pb2.Sampling:
    """The wire form."""
    return common_pb2.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[common_pb2.LogitBias(id=i, bias=b) for i, b in params.logit_bias.items()],
        seed=params.seed,
        max_tokens=params.max_tokens,
        stop=params.stop,
        stop_ids=params.stop_ids,
        ignore_eos=params.ignore_eos,
        acceptance_threshold=params.acceptance_threshold,
    )


def from_proto(sampling: common_pb2.Sampling) -> SamplingParams:
    """Raises InvalidSamplingError for values out of range; max_tokens 0 means 256."""
    check_counts(len(sampling.stop), len(sampling.stop_ids), len(sampling.logit_bias))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p if sampling.HasField("min_p") else 0.0,
        repetition_penalty=(
            sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0
        ),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias={entry.id: entry.bias for entry in sampling.logit_bias},
        seed=sampling.seed,
        max_tokens=sampling.max_tokens or DEFAULT_MAX_TOKENS,
        stop=tuple(sampling.stop),
        stop_ids=tuple(sampling.stop_ids),
        ignore_eos=sampling.ignore_eos,
        acceptance_threshold=sampling.acceptance_threshold,
    )
