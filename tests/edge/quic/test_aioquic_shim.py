"""The bounded connection: what comes out is what aioquic's gives, and what goes in has bounds."""

from __future__ import annotations

from typing import Any

import aioquic
import pytest
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicErrorCode, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import FinalSizeError, QuicStreamReceiver
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from services.edge.limits.listener import MemoryBudget
from services.edge.quic import aioquic_shim
from services.edge.quic.aioquic_streams import (
    BoundedReceiver,
    BoundedSender,
    CryptoReceiver,
    ReceiveState,
)

TEXT = bytes(range(1, 201))


def receiver(max_bytes: int = 1 << 20, max_fragments: int = 2048) -> BoundedReceiver:
    return BoundedReceiver(0, ReceiveState(MemoryBudget(max_bytes)), max_fragments)


def frame(start: int, end: int, *, fin: bool = False) -> QuicStreamFrame:
    return QuicStreamFrame(data=TEXT[start:end], offset=start, fin=fin)


def outcome(target: QuicStreamReceiver, item: tuple[int, int, bool] | int) -> Any:
    try:
        if isinstance(item, int):
            return target.handle_reset(final_size=item)
        start, length, fin = item
        return target.handle_frame(frame(start, min(start + length, len(TEXT)), fin=fin))
    except FinalSizeError:
        return FinalSizeError


FRAMES = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 60), st.booleans())
HONEST = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 60), st.just(False))


@given(st.lists(st.one_of(FRAMES, HONEST, HONEST, HONEST, st.integers(0, len(TEXT))), max_size=60))
def test_what_comes_out_is_what_aioquic_gives(
    items: list[tuple[int, int, bool] | int],
) -> None:
    ours, theirs = receiver(), QuicStreamReceiver(0, readable=True)
    for item in items:
        got, expected = outcome(ours, item), outcome(theirs, item)
        assert got == expected
        assert ours.is_finished == theirs.is_finished
        assert ours.highest_offset == theirs.highest_offset
        assert ours.starting_offset() == theirs.starting_offset()
        if expected is FinalSizeError:
            return  # the connection ends
    held = ours._shared.budget.num_bytes
    assert held == sum(map(len, ours._pieces)) + 128 * ours.num_fragments
    unread = ours.highest_offset - ours.starting_offset()
    assert ours._shared.num_unread_bytes == (0 if ours.is_finished else unread)


@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_all_of_a_stream_comes_out_in_whatever_order_it_came(rng: Any, size: int) -> None:
    target, out = receiver(), b""
    starts = [*range(0, len(TEXT), size)] * 2
    rng.shuffle(starts)
    for start in starts:
        end = min(start + size + rng.randrange(3), len(TEXT))
        event = target.handle_frame(frame(start, end, fin=end == len(TEXT)))
        out += event.data if event else b""
    assert out == TEXT and target.is_finished
    assert (
        target._shared.budget.num_bytes
        == target._shared.num_unread_bytes
        == target.num_fragments
        == 0
    )


def test_a_gap_costs_nothing() -> None:
    target = receiver()
    for power in range(14):
        target.handle_frame(QuicStreamFrame(data=b"x", offset=(1 << 20 + power) - 1))
    assert target.num_fragments == 14 and target._shared.budget.num_bytes == 14 * 129
    assert len(target._buffer) == 0


def test_fragments_are_counted() -> None:
    target = receiver(max_fragments=100)
    with pytest.raises(QuicConnectionError) as refused:
        for at in range(20_000):
            target.handle_frame(QuicStreamFrame(data=b"x", offset=1 + 2 * at))
    assert refused.value.error_code == QuicErrorCode.INTERNAL_ERROR
    assert target.num_fragments == 100


def test_fragments_have_to_have_room() -> None:
    target = receiver(max_bytes=1000)
    with pytest.raises(QuicConnectionError, match="no room"):
        for at in range(100):
            target.handle_frame(QuicStreamFrame(data=b"x" * 100, offset=1 + 200 * at))
    assert target.num_fragments == 4


def test_what_covers_others_takes_their_place() -> None:
    target = receiver(max_fragments=100)
    for at in range(99):
        target.handle_frame(QuicStreamFrame(data=b"x", offset=1 + 2 * at))
    target.handle_frame(QuicStreamFrame(data=b"y" * 300, offset=1))
    assert target.num_fragments == 1
    assert target._shared.budget.num_bytes == 300 + 128


def test_crypto_has_a_window_and_an_end() -> None:
    crypto = CryptoReceiver(ReceiveState(MemoryBudget(1 << 20)))
    for offset, size in ((16_384, 1), (500_000, 1)):
        with pytest.raises(QuicConnectionError) as refused:
            crypto.handle_frame(QuicStreamFrame(data=b"x" * size, offset=offset))
        assert refused.value.error_code == QuicErrorCode.CRYPTO_BUFFER_EXCEEDED
    assert crypto.num_fragments == 0
    with pytest.raises(QuicConnectionError):
        for offset in range(0, 1 << 20, 1000):
            crypto.handle_frame(QuicStreamFrame(data=b"x" * 1000, offset=offset))
    assert crypto.starting_offset() <= 65_536


def test_a_reader_that_takes_every_second_byte_is_ended() -> None:
    sender = BoundedSender(0, writable=True)
    sender.write(b"x" * 10_000)
    while (sent := sender.get_frame(1000)) is not None:
        assert sent.data
    with pytest.raises(QuicConnectionError):
        for at in range(1, 10_000, 2):
            sender.on_data_delivery(QuicDeliveryState.ACKED, at, at + 1, False)
    assert len(sender._acked) <= 1025


def test_what_a_reset_stream_had_to_send_is_dropped() -> None:
    sender = BoundedSender(0, writable=True)
    sender.write(b"x" * 10_000)
    assert sender.get_frame(1000) is not None
    sender.reset(1)
    assert len(sender._buffer) == 0 and sender.get_reset_frame().final_size == 1000
    sender.on_data_delivery(QuicDeliveryState.LOST, 0, 1000, False)
    sender.on_reset_delivery(QuicDeliveryState.ACKED)
    assert sender.is_finished


def test_it_is_written_for_one_version_of_aioquic(monkeypatch: pytest.MonkeyPatch) -> None:
    aioquic_shim.check_version()
    monkeypatch.setattr(aioquic, "__version__", "1.8.0")
    with pytest.raises(ConfigError, match=r"aioquic 1\.7\.2, not 1\.8\.0"):
        aioquic_shim.check_version()
