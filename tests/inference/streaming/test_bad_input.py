"""Every bad input gets a typed error, ends only its own session, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from outrider import errors
from outrider.rpc import from_rpc_error
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import token_block_to_proto
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.streaming.wire import MAX_PREDICTION_TOKENS
from tests.inference.harness import CODER, GatedEngine, Peer, opening, reference, running

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


def _tail(block: common_pb2.TokenBlock) -> inference_pb2.PromptDelta:
    return inference_pb2.PromptDelta(tail=block)


def _block(ids: list[int]) -> common_pb2.TokenBlock:
    return token_block_to_proto(CODER.encode(ids))


def _unchecked(ids: list[int]) -> common_pb2.TokenBlock:
    block = _block(ids)
    block.ClearField("checksum")
    return block


def _spoilt(**changes: Any) -> common_pb2.TokenBlock:
    block = _block([5, 6, 7])
    for name, value in changes.items():
        setattr(block, name, value)
    return block


BAD_OPENINGS: dict[str, tuple[dict[str, Any], type[errors.OutriderError], str]] = {
    "no request id": ({"request_id": ""}, errors.InvalidRequestError, "request_id"),
    "endless request id": ({"request_id": "x" * 999}, errors.InvalidRequestError, "request_id"),
    "endless salt": ({"cache_salt": b"x" * 65}, errors.InvalidRequestError, "cache_salt"),
    "unknown model": ({"model": "gpt-9"}, errors.UnknownModelError, "serves letters"),
    "other vocabulary": ({"vocabulary_digest": b"\xaa" * 32}, errors.VocabularyMismatchError, "aa"),
    "no vocabulary": ({"vocabulary_digest": b""}, errors.VocabularyMismatchError, "not named"),
    "a damaged prediction": (
        {"prediction": _spoilt(checksum=1)},
        errors.BadTokenBlockError,
        "checksum",
    ),
    "an endless prediction": (
        {"prediction": _spoilt(count=MAX_PREDICTION_TOKENS + 1)},
        errors.BadTokenBlockError,
        str(MAX_PREDICTION_TOKENS),
    ),
    "more log probabilities than there are": (
        {"sampling": common_pb2.Sampling(num_logprobs=21)},
        errors.InvalidSamplingError,
        "num_logprobs",
    ),
    "another model's reply": (
        {"resume": _block([5]), "model_identity": b"\xbb" * 32},
        errors.UnavailableError,
        "computes as 0a0a0a0a",
    ),
    "an endless model identity": (
        {"model_identity": bytes(65)},
        errors.MalformedFrameError,
        "at most 64",
    ),
    "messages": (
        {"messages": inference_pb2.PromptMessages()},
        errors.InvalidRequestError,
        "router",
    ),
    "no prompt": ({"ids": None}, errors.EmptyPromptError, "no prompt"),
    "empty prompt": ({"ids": _tail(_block([]))}, errors.EmptyPromptError, "at least one"),
    "long prompt": ({"ids": _tail(_block([5] * 2048))}, errors.PromptTooLongError, "2048"),
    "a prefix": (
        {"ids": inference_pb2.PromptDelta(prefix_tokens=4, tail=_block([5]))},
        errors.PrefixUnknownError,
        "whole",
    ),
    "checksum": ({"ids": _tail(_spoilt(checksum=1))}, errors.BadTokenBlockError, "checksum"),
    "count": ({"ids": _tail(_spoilt(count=2))}, errors.BadTokenBlockError, ""),
    "truncated": ({"ids": _tail(_spoilt(payload=b"\x05"))}, errors.BadTokenBlockError, ""),
    "codec": ({"ids": _tail(_spoilt(codec=9))}, errors.BadTokenBlockError, ""),
    "absent codec": ({"codecs": [9]}, errors.BadTokenBlockError, "common"),
    "priority": ({"priority": 9}, errors.InvalidRequestError, "priority"),
    "speculation": ({"speculation": 9}, errors.InvalidRequestError, "speculation"),
    "temperature": (
        {"sampling": common_pb2.Sampling(temperature=float("nan"))},
        errors.InvalidSamplingError,
        "temperature",
    ),
    "top_p": (
        {"sampling": common_pb2.Sampling(top_p=0.0)},
        errors.InvalidSamplingError,
        "top_p",
    ),
    "biased stranger": (
        {"sampling": common_pb2.Sampling(logit_bias=[common_pb2.LogitBias(id=64, bias=1)])},
        errors.InvalidSamplingError,
        "64",
    ),
    "no checksum": ({"resume": _unchecked([5])}, errors.BadTokenBlockError, "no checksum"),
    "resume block": ({"resume": _spoilt(checksum=1)}, errors.BadTokenBlockError, "checksum"),
    "resume past the end": (
        {"resume": _block([5] * 41)},
        errors.InvalidRequestError,
        "resume",
    ),
    "drafts": (
        {"draft": inference_pb2.Draft(id=64)},
        errors.BadTokenBlockError,
        "outside the vocabulary",
    ),
    "endless drafts": (
        {"draft": inference_pb2.Draft(ids=b"\x05" * 1025)},
        errors.BadTokenBlockError,
        "1025 varints where at most 1024",
    ),
}


@pytest.mark.parametrize("name", BAD_OPENINGS)
async def test_a_bad_opening_ends_its_session_alone(name: str) -> None:
    fields, kind, message = BAD_OPENINGS[name]
    async with running(GatedEngine()) as it:
        peer = it.peer()
        await peer.open(1, [9, 8, 7], LONG)
        frame = opening([5], **{key: value for key, value in fields.items() if value is not None})
        if fields.get("ids", ()) is None:
            frame.ClearField("ids")
        await peer.send(inference_pb2.SessionUp(session=2, open=frame))
        it.gated.gate.set()
        failed = await peer.finish(2)
        assert type(failed.error) is kind
        assert message in failed.error.message
        assert tuple((await peer.finish(1)).ids) == reference([9, 8, 7], LONG).ids
        await peer.call.done_writing()
        await eventually(it.is_clean)


async def test_openings_that_are_refused_at_the_border_are_counted() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [5], vocabulary_digest=b"\xaa" * 32)
        await peer.finish(1)
        labels = {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": "outrider",
            "gen_ai_request_model": "letters",
            "error_type": "VOCABULARY_MISMATCH",
        }
        value = it.metrics.registry.get_sample_value
        assert value("gen_ai_server_request_duration_seconds_count", labels) == 1


async def test_a_vocabulary_mismatch_names_both_digests() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [5], vocabulary_digest=b"\xaa" * 32)
        error = (await peer.finish(1)).error
        assert error is not None
        assert "aa" * 32 in error.message
        assert bytes(range(32)).hex() in error.message
        assert error.metadata["theirs"] == "aa" * 32


async def test_late_drafts_and_cancels_are_legal() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, [5])
        done = await peer.finish(1)
        await peer.draft(1, 3, len(done.ids), [1, 2])
        await peer.cancel(1)
        await peer.open(2, [6])
        assert (await peer.finish(2)).done is not None
        assert not peer._frames[1]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (inference_pb2.SessionUp(session=5, cancel=inference_pb2.CancelSession()), "never opened"),
        (inference_pb2.SessionUp(session=5, draft=inference_pb2.Draft()), "never opened"),
        (inference_pb2.SessionUp(session=5), "no known kind"),
        (inference_pb2.SessionUp(session=5, prompt=inference_pb2.PromptDelta()), "no known kind"),
    ],
    ids=["cancel", "draft", "empty", "prompt"],
)
async def test_frames_out_of_place(frame: inference_pb2.SessionUp, message: str) -> None:
    async with running() as it:
        peer = it.peer()
        await peer.send(frame)
        failed = await peer.finish(5)
        assert type(failed.error) is errors.MalformedFrameError
        assert message in failed.error.message
        await peer.open(6, [6])
        assert (await peer.finish(6)).done is not None


async def test_a_bad_draft_ends_its_session() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG)
        await peer.open(2, [6], LONG)
        draft = inference_pb2.Draft(ids=b"\xff")
        await peer.send(inference_pb2.SessionUp(session=1, draft=draft))
        assert type((await peer.finish(1)).error) is errors.BadTokenBlockError
        it.gated.gate.set()
        assert tuple((await peer.finish(2)).ids) == reference([6], LONG).ids


async def _no_number(peer: Peer) -> None:
    await peer.send(inference_pb2.SessionUp(open=opening([5])))


async def _garbage(peer: Peer) -> None:
    await peer.call._cython_call.send_serialized_message(b"\xff\xff\xff")


async def _too_large(peer: Peer) -> None:
    await peer.open(2, [5], tenant="x" * 70_000)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (_no_number, errors.MalformedFrameError),
        (_garbage, errors.MalformedFrameError),
        (_too_large, errors.FrameTooLargeError),
    ],
)
async def test_a_broken_frame_ends_the_stream_and_no_other(
    act: Callable[[Peer], Any], kind: type[errors.OutriderError]
) -> None:
    async with running(GatedEngine(), max_message_bytes=65_536) as it:
        broken, healthy = it.peer(), it.peer()
        await broken.open(1, [5], LONG)
        await healthy.open(1, [6], LONG)
        await eventually(lambda: len(it.replica.table) == 2)
        await act(broken)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await broken.finish(1)
        assert type(from_rpc_error(caught.value)) is kind
        await eventually(lambda: len(it.replica.table) == 1)
        it.gated.gate.set()
        assert tuple((await healthy.finish(1)).ids) == reference([6], LONG).ids
        await healthy.call.done_writing()
        await eventually(it.is_clean)


async def test_sessions_per_stream_and_in_the_queue_are_bounded() -> None:
    limits = SchedulerLimits(max_sessions=1, max_queue=1)
    async with running(GatedEngine(), scheduler=limits, max_stream_sessions=3) as it:
        peer = it.peer()
        await peer.open(1, [5])
        await eventually(it.gated.waiting.is_set)
        for number in range(2, 6):
            await peer.open(number, [4 + number])
        full = (await peer.finish(4)).error
        assert type(full) is errors.OverloadedError
        assert "another stream" in full.message
        it.gated.gate.set()
        replies = [await peer.finish(number) for number in (1, 2, 3, 5)]
        refused = [reply.error for reply in replies if reply.error is not None]
        assert {type(error) for error in refused} == {errors.OverloadedError}
        assert all(error.retry_delay_ms > 0 for error in refused)
        assert replies[0].done is not None
