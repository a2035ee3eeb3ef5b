"""Values go over the wire as they are: damage included, bounds kept."""

from __future__ import annotations

import math
from array import array

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import errors
from outrider.codec.ranks import RankTable
from outrider.codec.tokens import Block, TokenCoder, ids_checksum
from outrider.cost import MAX_AMOUNT_NANOS, Cost
from outrider.errors import BadTokenBlockError, InvalidSamplingError, MalformedFrameError
from outrider.reply_parsing.formats import REASONING_TAGS
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind
from outrider.sampling.params import MAX_LOGPROBS, SamplingParams
from outrider.session.types import (
    MIN_LOGPROB,
    FinishReason,
    Priority,
    ScoredToken,
    Speculation,
    TokenLogprobs,
    Usage,
)
from outrider.v1 import common_pb2, edge_pb2
from outrider.wire import (
    MAX_MESSAGE_CHARS,
    MAX_METADATA,
    cost_of,
    error_from_proto,
    error_to_proto,
    finish_reason_from_proto,
    finish_reason_to_proto,
    logprobs_from_proto,
    logprobs_to_proto,
    priority_from_proto,
    priority_to_proto,
    sampling_from_proto,
    sampling_to_proto,
    set_cost,
    speculation_from_proto,
    speculation_to_proto,
    token_block_from_proto,
    token_block_to_proto,
    usage_from_proto,
    usage_to_proto,
)

RANKED = TokenCoder(b"d" * 32, 300, RankTable(b"t" * 32, 300, [299, 7]))


@given(st.lists(st.integers(0, 299), max_size=8), st.integers(0, 8))
def test_a_checksum_runs_over_the_parts_of_a_reply(ids: list[int], cut: int) -> None:
    whole = RANKED.checksum(ids)
    assert RANKED.checksum(ids[cut:], RANKED.checksum(ids[:cut])) == whole
    assert ids_checksum(b"d" * 32, array("I", ids)) == whole == RANKED.encode(ids).checksum
    assert not ids or RANKED.checksum(ids[:-1]) != whole


def test_unknown_codec_reaches_the_decoder() -> None:
    block = token_block_from_proto(
        token_block_to_proto(Block(codec=77, count=1, checksum=0, payload=b"\x01"))
    )
    assert block.codec == 77
    with pytest.raises(BadTokenBlockError):
        TokenCoder(b"d" * 32, 1000).decode(block, max_count=4)


@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 2**31 - 1),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0.01, 10),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), st.floats(-99, 99), max_size=4),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.integers(1, 2**31 - 1),
        stop=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
        stop_ids=st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
        ignore_eos=st.just(False),
        acceptance_threshold=st.floats(0, 1),
        num_logprobs=st.integers(-1, 20),
        max_thinking_tokens=st.integers(-1, 2**31 - 1),
        reasoning_tags=st.sampled_from([None, *REASONING_TAGS]),
        grammar=st.sampled_from(
            [
                None,
                JSON_OBJECT,
                Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}'),
                Grammar(GrammarKind.REGEX, "ä+"),
                Grammar(GrammarKind.LARK, 'start: "a"'),
            ]
        ),
    )
)
def test_round_trip_of_sampling(params: SamplingParams) -> None:
    wire = sampling_to_proto(params).SerializeToString()
    assert sampling_from_proto(common_pb2.Sampling.FromString(wire)) == params


def test_replies_that_go_past_their_end_are_asked_for_on_the_wire() -> None:
    params = SamplingParams(ignore_eos=True)
    assert sampling_from_proto(sampling_to_proto(params)) == params


def test_an_empty_message_is_the_defaults() -> None:
    assert sampling_from_proto(common_pb2.Sampling()) == SamplingParams()


def test_explicit_zero_is_not_a_default() -> None:
    with pytest.raises(InvalidSamplingError, match="top_p"):
        sampling_from_proto(common_pb2.Sampling(top_p=0.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": math.nan},
        {"temperature": -0.5},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"min_p": math.nan},
        {"repetition_penalty": -1.0},
        {"presence_penalty": 1e30},
        {"frequency_penalty": -math.inf},
        {"top_k": 2**32 - 1},
        {"max_tokens": 2**32 - 1},
        {"stop": [""]},
        {"stop": ["x" * 9999]},
        {"stop_ids": list(range(99))},
        {"acceptance_threshold": 2.0},
        {"num_logprobs": 21},
        {"num_logprobs": 2**32 - 1},
        {"max_thinking_tokens": 2**32 - 1},
        {"reasoning_tags": ["<think>"]},
        {"reasoning_tags": ["<think>", ""]},
        {"reasoning_tags": ["<think>", "x" * 99]},
        {"logit_bias": [common_pb2.LogitBias(id=1, bias=math.nan)]},
        {"grammar": common_pb2.Grammar()},
        {"grammar": common_pb2.Grammar(kind=common_pb2.GrammarKind.ValueType(9), text="a")},
        {"grammar": common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_JSON_SCHEMA, text="[")},
        {
            "grammar": common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_REGEX, text="a"),
            "ignore_eos": True,
        },
    ],
)
def test_absurd_values_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidSamplingError):
        sampling_from_proto(common_pb2.Sampling(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampling",
    [
        common_pb2.Sampling(stop=["x"] * 17),
        common_pb2.Sampling(stop_ids=[1] * 17),
        # As many as the limit allows once they are put together by id.
        common_pb2.Sampling(logit_bias=[common_pb2.LogitBias(id=1, bias=1.0)] * 1025),
    ],
    ids=["stop", "stop_ids", "logit_bias"],
)
def test_entries_are_counted_before_they_are_read(sampling: common_pb2.Sampling) -> None:
    with pytest.raises(InvalidSamplingError, match="at most"):
        sampling_from_proto(sampling)


@given(st.integers(0, MAX_AMOUNT_NANOS))
def test_round_trip_of_a_cost(amount_nanos: int) -> None:
    usage = common_pb2.Usage(prompt_tokens=3)
    set_cost(usage, Cost(amount_nanos, "USD"))
    arrived = common_pb2.Usage.FromString(usage.SerializeToString())
    assert cost_of(arrived) == Cost(amount_nanos, "USD"), "nothing is not unknown"
    assert arrived.prompt_tokens == 3


def test_no_cost_takes_the_place_of_what_was_said() -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=5, currency="USD"))
    set_cost(usage, None)
    assert cost_of(usage) is None
    assert usage == common_pb2.Usage()


@pytest.mark.parametrize(("amount", "currency"), [(2**63, "USD"), (1, ""), (1, "\x1b[2J")])
def test_a_peer_that_makes_it_up_is_refused(amount: int, currency: str) -> None:
    usage = common_pb2.Usage(cost=common_pb2.Cost(amount_nanos=amount, currency=currency))
    with pytest.raises(MalformedFrameError, match="costs"):
        cost_of(usage)


@pytest.mark.parametrize("numbers", [(1,), (3, 2, 1, 4), (2, 3, 1), (1025, 0, 1)])
def test_calls_that_verified_drafts_have_to_add_up(numbers: tuple[int, ...]) -> None:
    with pytest.raises(MalformedFrameError, match="drafts"):
        usage_from_proto(common_pb2.Usage(acceptance=numbers))


def test_each_value_has_its_number_on_the_wire() -> None:
    for priority in (None, *Priority):
        assert priority_from_proto(priority_to_proto(priority)) is priority
    for speculation in Speculation:
        number = speculation_to_proto(speculation)
        assert speculation_from_proto(number) is speculation
        assert common_pb2.Speculation.Name(number) == f"SPECULATION_{speculation.name}"


def test_each_end_has_its_number_on_the_wire() -> None:
    for reason in FinishReason:
        number = finish_reason_to_proto(reason)
        assert finish_reason_from_proto(number) is reason
        assert common_pb2.FinishReason.Name(number) == f"FINISH_REASON_{reason.name}"


def _tree(root: type[errors.OutriderError]) -> list[type[errors.OutriderError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


@pytest.mark.parametrize("cls", _tree(errors.OutriderError))
def test_round_trip_of_an_error(cls: type[errors.OutriderError]) -> None:
    sent = cls("say what to do", retry_delay_ms=250, metadata={"ours": "aa", "theirs": "bb"})
    detail = error_to_proto(sent)
    assert detail.grpc_code == grpc.StatusCode[cls.grpc_code].value[0]
    back = error_from_proto(common_pb2.ErrorDetail.FromString(detail.SerializeToString()))
    assert type(back) is cls
    assert (back.message, back.retry_delay_ms, back.metadata) == (
        sent.message,
        250,
        sent.metadata,
    )


def test_unknown_reason_is_kept_in_metadata() -> None:
    back = error_from_proto(common_pb2.ErrorDetail(reason="FROM_THE_FUTURE", grpc_code=13))
    assert type(back) is errors.OutriderError
    assert back.metadata["reason"] == "FROM_THE_FUTURE"
    assert back.message


def test_errors_are_bounded_in_both_directions() -> None:
    huge = errors.EngineError("x" * 9000, metadata={str(i): "v" * 999 for i in range(99)})
    detail = error_to_proto(huge)
    assert len(detail.message) == MAX_MESSAGE_CHARS
    assert detail.ByteSize() < 8192
    hostile = common_pb2.ErrorDetail(
        reason="ENGINE" * 999, message="x" * 9000, metadata={str(i): "v" for i in range(99)}
    )
    back = error_from_proto(hostile)
    assert len(back.message) == MAX_MESSAGE_CHARS
    assert len(back.metadata) <= MAX_METADATA + 1


LOGPROBS = st.floats(MIN_LOGPROB, 0.0, width=32)
SCORED = st.builds(ScoredToken, st.integers(0, 2**32 - 1), LOGPROBS, st.binary(max_size=9))
OF_TOKENS = st.builds(TokenLogprobs, SCORED, st.lists(SCORED, max_size=MAX_LOGPROBS).map(tuple))


@given(st.lists(OF_TOKENS, max_size=4).map(tuple))
def test_round_trip_of_log_probabilities(logprobs: tuple[TokenLogprobs, ...]) -> None:
    wire = edge_pb2.CommitText(logprobs=logprobs_to_proto(logprobs)).SerializeToString()
    read = edge_pb2.CommitText.FromString(wire).logprobs
    assert logprobs_from_proto(read, max_tokens=len(logprobs)) == logprobs


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.5, -1e9])
def test_what_is_no_log_probability_is_refused(value: float) -> None:
    bad = common_pb2.ScoredToken(id=1, logprob=value)
    good = common_pb2.ScoredToken(id=1, logprob=-0.5)
    for chosen, top in ((bad, good), (good, bad)):
        message = common_pb2.TokenLogprobs(chosen=chosen, top=[top])
        with pytest.raises(MalformedFrameError, match="log probability"):
            logprobs_from_proto([message], max_tokens=1)


def test_no_more_log_probabilities_than_can_be_asked_for() -> None:
    token = common_pb2.ScoredToken(id=1, logprob=-0.5)
    full = common_pb2.TokenLogprobs(chosen=token, top=[token] * MAX_LOGPROBS)
    assert len(logprobs_from_proto([full] * 8, max_tokens=8)) == 8
    over = common_pb2.TokenLogprobs(chosen=token, top=[token] * (MAX_LOGPROBS + 1))
    for messages in ([full] * 9, [over]):
        with pytest.raises(MalformedFrameError, match="at most 8 tokens"):
            logprobs_from_proto(messages, max_tokens=8)


def test_round_trip_of_usage() -> None:
    usage = Usage(1, 2, 3, 4, 5, Cost(6, "USD"), 7, 8)
    assert usage_from_proto(usage_to_proto(usage)) == usage
