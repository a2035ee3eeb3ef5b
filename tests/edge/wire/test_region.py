"""Session frames: the codec that is used, prompts as ids or as messages, frames that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.codec.ranks import RankTable
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.cost import Cost
from outrider.errors import BadTokenBlockError, MalformedFrameError, OverloadedError
from outrider.session.region import Commit, Draft
from outrider.session.types import MAX_DRAFTS_PER_CALL, FinishReason, Timings, Usage
from outrider.tokenization.rewriting import Rewriter, RewritingPolicy
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import (
    error_to_proto,
    token_block_from_proto,
)
from services.edge.access.identity import Identity
from services.edge.session.events import (
    OpenRegion,
    RegionDone,
    RegionFailed,
    RegionMoved,
    RegionOpened,
    ResumePoint,
)
from services.edge.wire.region import RegionCodec, RegionWire
from tests.edge.session.toolkit import DIGEST, request

CODER = TokenCoder(DIGEST, 1000)


def fresh() -> RegionWire:
    return RegionWire(CODER, DIGEST, "here")


def test_a_prompt_goes_up_as_a_block_every_peer_reads() -> None:
    frame = fresh().open(OpenRegion(request(), (1, 2, 999), 250), ("tp", "ts"))
    opening = frame.open
    block = token_block_from_proto(opening.ids.tail)
    assert block.codec == TokenCodec.VARINT
    assert CODER.decode(block, max_count=3) == (1, 2, 999)
    assert (opening.ids.prefix_tokens, opening.vocabulary_digest) == (0, DIGEST)
    assert (opening.request_id, opening.deadline_ms, opening.origin_region) == ("r-1", 250, "here")
    assert (opening.trace.traceparent, opening.trace.tracestate) == ("tp", "ts")
    assert list(opening.codecs) == [int(codec) for codec in CODER.supported]
    assert opening.run == 0
    later = fresh().open(OpenRegion(replace(request(), run=2**32 - 1), (1,), 0), ("", "")).open
    assert later.run == 2**32 - 1


def test_ids_of_an_earlier_run_go_up_as_a_block() -> None:
    for prompt in ((1, 2), None):
        asked = replace(request(thin=prompt is None), resume=ResumePoint(upto=2, ids=(7, 999)))
        opening = fresh().open(OpenRegion(asked, prompt, 0), ("", "")).open
        assert CODER.decode(token_block_from_proto(opening.resume), max_count=2) == (7, 999)
    assert not fresh().open(OpenRegion(request(), (1,), 0), ("", "")).open.HasField("resume")


def test_the_model_of_those_ids_goes_up_with_them_and_not_without() -> None:
    for ids, named in (((7, 999), b"model"), ((), b"")):
        resume = ResumePoint(upto=2, ids=ids, model_identity=b"model")
        asked = replace(request(), resume=resume)
        opening = fresh().open(OpenRegion(asked, (1,), 0), ("", "")).open
        assert opening.model_identity == named


def told(kind: str, identity: bytes) -> inference_pb2.SessionDown:
    """A frame that names a replica's model."""
    if kind == "opened":
        opened = inference_pb2.SessionOpened(model_identity=identity)
        return inference_pb2.SessionDown(opened=opened)
    moved = inference_pb2.SessionMoved(model_identity=identity)
    return inference_pb2.SessionDown(moved=moved)


@pytest.mark.parametrize("kind", ["opened", "moved"])
def test_the_model_of_a_replica_comes_down(kind: str) -> None:
    model = b"\x0a" * 64
    read = fresh().read(told(kind, model))
    assert isinstance(read, RegionOpened | RegionMoved) and read.model_identity == model
    with pytest.raises(MalformedFrameError, match="at most 64"):
        fresh().read(told(kind, model + b"x"))


def test_a_replica_takes_no_more_drafts_than_a_call_may_verify() -> None:
    for told, most in ((8, 8), (2**32 - 1, MAX_DRAFTS_PER_CALL)):
        opened = inference_pb2.SessionOpened(max_drafts=told)
        read = fresh().read(inference_pb2.SessionDown(opened=opened))
        assert isinstance(read, RegionOpened) and read.max_drafts == most


def test_a_session_is_opened_in_its_tenants_name() -> None:
    acme = Identity("acme", b"owner", cache_salt=b"salt")
    for action in (OpenRegion(request(), (1,), 0), OpenRegion(request(thin=True), None, 0)):
        opening = RegionWire(CODER, DIGEST, "here", acme).open(action, ("", "")).open
        assert (opening.tenant, opening.cache_salt) == ("acme", acme.cache_salt)
        opening = fresh().open(action, ("", "")).open
        assert (opening.tenant, opening.cache_salt) == ("", b"")


def test_a_thin_prompt_goes_up_as_messages() -> None:
    opening = fresh().open(OpenRegion(request(thin=True), None, 0), ("", "")).open
    assert [(m.role, m.content) for m in opening.messages.messages] == [("user", "hello")]
    assert opening.vocabulary_digest == b"" and not opening.messages.prefixed


def test_a_thin_prompt_goes_up_with_the_operators_prefix_which_is_told() -> None:
    rewriter = Rewriter(RewritingPolicy(system_prefix="House rules."))
    wire = RegionWire(CODER, DIGEST, "here", rewriter=rewriter)
    for _ in range(2):  # opened again after a loss, the same goes up
        messages = wire.open(OpenRegion(request(thin=True), None, 0), ("", "")).open.messages
        found = [(m.role, m.content) for m in messages.messages]
        assert found == [("system", "House rules."), ("user", "hello")]
        assert messages.prefixed


@pytest.mark.parametrize(
    ("named", "used"),
    [(3, TokenCodec.U16), (1, TokenCodec.VARINT), (0, TokenCodec.VARINT), (77, TokenCodec.VARINT)],
)
def test_the_next_prompts_use_the_codec_the_region_named_if_we_can(
    named: int, used: TokenCodec
) -> None:
    shared = RegionCodec()

    def prompt_codec() -> int:
        wire = RegionWire(CODER, DIGEST, "here", region_codec=shared)
        return int(wire.open(OpenRegion(request(), (7, 8), 0), ("", "")).open.ids.tail.codec)

    assert prompt_codec() == TokenCodec.VARINT
    opened = inference_pb2.SessionOpened(vocabulary_digest=DIGEST)
    opened.codec = common_pb2.TokenCodec.ValueType(named)
    wire = RegionWire(CODER, DIGEST, "here", region_codec=shared)
    assert isinstance(wire.read(inference_pb2.SessionDown(opened=opened)), RegionOpened)
    assert prompt_codec() == used
    refused = error_to_proto(BadTokenBlockError("token codec 3 is not one of [2]"))
    wire.read(inference_pb2.SessionDown(error=refused))
    assert prompt_codec() == TokenCodec.VARINT


@pytest.mark.parametrize("named", [1, 2, 77])
def test_drafts_are_ranks_if_the_region_and_we_have_them(named: int) -> None:
    ranks = RankTable(b"t" * 32, 1000, [7])
    for coder in (CODER, TokenCoder(DIGEST, 1000, ranks)):
        wire = RegionWire(coder, DIGEST, "here")
        opened = inference_pb2.SessionOpened(vocabulary_digest=DIGEST)
        opened.codec = common_pb2.TokenCodec.ValueType(named)
        wire.read(inference_pb2.SessionDown(opened=opened))
        draft = wire.draft(Draft(2, 5, (7, 8), continues=True)).draft
        is_ranked = coder is not CODER and named == TokenCodec.RANK_VARINT
        expected = (b"", b"\x00\x08") if is_ranked else (b"\x07\x08", b"")
        assert (draft.ids, draft.ranks) == expected
        assert (draft.epoch, draft.base, draft.continues) == (2, 5, True)


def test_a_prediction_goes_up_as_a_block() -> None:
    opening = fresh().open(OpenRegion(request(), (1,), 0, prediction=(7, 999)), ("", "")).open
    assert CODER.decode(token_block_from_proto(opening.prediction), max_count=2) == (7, 999)
    assert not fresh().open(OpenRegion(request(), (1,), 0), ("", "")).open.HasField("prediction")


def test_that_a_lost_replica_could_serve_it_goes_up() -> None:
    for is_proven in (False, True):
        action = OpenRegion(request(), (1,), 0, is_proven=is_proven)
        assert fresh().open(action, ("", "")).open.proven == is_proven


def test_numbers_go_up_and_come_back() -> None:
    wire = fresh()
    assert wire.open(OpenRegion(request(), (1,), 0, echo=3), ("", "")).open.echo == 3
    assert wire.draft(Draft(0, 0, (7,), echo=4)).draft.echo == 4
    opened = inference_pb2.SessionOpened(echo=3, ack_delay_ms=250, max_drafts=8)
    got = wire.read(inference_pb2.SessionDown(opened=opened))
    assert isinstance(got, RegionOpened)
    assert (got.echo, got.ack_delay_s, got.max_drafts) == (3, 0.25, 8)


@pytest.mark.parametrize("ms", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(ms: float) -> None:
    opened = inference_pb2.SessionOpened(ack_delay_ms=ms)
    with pytest.raises(MalformedFrameError, match="time"):
        fresh().read(inference_pb2.SessionDown(opened=opened))


def test_a_commit_is_read_in_the_models_vocabulary() -> None:
    commit = inference_pb2.Commit(epoch=1, base=2, accepted=3, ids=b"\x04\x05", upto=7)
    assert fresh().read(inference_pb2.SessionDown(commit=commit)) == Commit(1, 2, 3, (4, 5))


def test_done_and_error() -> None:
    done = inference_pb2.SessionDone(
        finish_reason=common_pb2.FINISH_REASON_LENGTH,
        upto=3,
        usage=common_pb2.Usage(
            prompt_tokens=1,
            accepted_tokens=2,
            cost=common_pb2.Cost(amount_nanos=3, currency="USD"),
        ),
        timings=common_pb2.Timings(queue_ms=1.5, total_ms=9),
        checksum=77,
    )
    assert fresh().read(inference_pb2.SessionDown(done=done)) == RegionDone(
        FinishReason.LENGTH,
        3,
        Usage(prompt_tokens=1, accepted_tokens=2, cost=Cost(3, "USD")),
        Timings(queue_ms=1.5, total_ms=9),
        checksum=77,
    )
    done.usage.cost.currency = ""
    with pytest.raises(MalformedFrameError, match="costs"):
        fresh().read(inference_pb2.SessionDown(done=done))
    detail = error_to_proto(OverloadedError("full", retry_delay_ms=5))
    failed = fresh().read(inference_pb2.SessionDown(error=detail))
    assert isinstance(failed, RegionFailed)
    assert isinstance(failed.error, OverloadedError)


def test_a_session_that_moved() -> None:
    moved = inference_pb2.SessionMoved(replica="r-2", region="us", max_drafts=4, epoch=3)
    assert fresh().read(inference_pb2.SessionDown(moved=moved)) == RegionMoved("r-2", "us", 3)


def test_frames_that_are_none() -> None:
    with pytest.raises(MalformedFrameError):
        fresh().read(inference_pb2.SessionDown(session=1))
    with pytest.raises(MalformedFrameError):
        fresh().read(inference_pb2.SessionDown(done=inference_pb2.SessionDone()))
