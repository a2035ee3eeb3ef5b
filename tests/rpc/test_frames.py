"""Frames gathered into messages and taken out of them, within bounds both ways."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from google.protobuf.internal import api_implementation

from outrider.errors import MalformedFrameError
from outrider.rpc import Outbox, outgoing, received
from outrider.rpc.frames import MAX_BATCH_BYTES, MAX_FRAMES
from outrider.v1 import inference_pb2


def frame(session: int, reason: str = "") -> inference_pb2.SessionUp:
    cancel = inference_pb2.CancelSession(reason=reason)
    return inference_pb2.SessionUp(session=session, cancel=cancel)


async def messages(*numbers: range) -> AsyncIterator[inference_pb2.GenerateRequest]:
    for sessions in numbers:
        yield inference_pb2.GenerateRequest(frames=map(frame, sessions))


def test_protobuf_runs_in_c() -> None:
    """The costs that the wire was chosen by are those of upb."""
    assert api_implementation.Type() == "upb"


async def test_what_waits_goes_as_one_message() -> None:
    outbox: Outbox[inference_pb2.SessionUp] = Outbox()
    batches = outgoing(outbox, inference_pb2.GenerateRequest.FromString)
    for sessions in (range(1, 4), range(4, 5)):
        for number in sessions:
            outbox.put_nowait(frame(number))
        assert [it.session for it in (await anext(batches)).frames] == list(sessions)
    outbox.close()
    assert [batch async for batch in batches] == []


async def test_a_message_has_no_more_frames_than_its_reader_takes() -> None:
    outbox: Outbox[inference_pb2.SessionUp] = Outbox(3 * MAX_FRAMES)
    for number in range(1, 2 * MAX_FRAMES + 2):
        outbox.put_nowait(frame(number))
    outbox.close()
    sent = [it async for it in outgoing(outbox, inference_pb2.GenerateRequest.FromString)]
    batches = [message.frames for message in sent]
    assert [len(batch) for batch in batches] == [MAX_FRAMES, MAX_FRAMES, 1]
    numbers = [it.session for batch in batches for it in batch]
    assert numbers == list(range(1, 2 * MAX_FRAMES + 2))


async def test_a_message_has_no_more_bytes_than_its_reader_takes() -> None:
    outbox: Outbox[inference_pb2.SessionUp] = Outbox()
    sizes = [MAX_BATCH_BYTES // 3, MAX_BATCH_BYTES // 3, MAX_BATCH_BYTES // 3, 0]
    sizes += [4 * MAX_BATCH_BYTES, 0]  # one alone may be larger: only its peer says if it fits
    for number, size in enumerate(sizes, start=1):
        outbox.put_nowait(frame(number, "x" * size))
    outbox.close()
    messages = outgoing(outbox, inference_pb2.GenerateRequest.FromString)
    sent = [[it.session for it in message.frames] async for message in messages]
    assert sent == [[1, 2], [3, 4], [5], [6]]


async def test_frames_come_in_order_and_some_at_a_time() -> None:
    sent = [range(1, 2), range(2, 2 + MAX_FRAMES), range(5000, 5003)]
    slices = [[it.session for it in part] async for part in received(messages(*sent))]
    assert [number for part in slices for number in part] == [*sent[0], *sent[1], *sent[2]]
    assert max(map(len, slices)) < 100, "the event loop gets a turn in between"


@pytest.mark.parametrize("count", [0, MAX_FRAMES + 1, 50 * MAX_FRAMES])
async def test_messages_out_of_bounds_end_the_stream(count: int) -> None:
    taken = []
    with pytest.raises(MalformedFrameError, match=f"send 1 to {MAX_FRAMES}"):
        async for part in received(messages(range(1, 3), range(1, count + 1))):
            taken += part
    assert len(taken) == 2, "what came before is taken, and nothing of that message"
