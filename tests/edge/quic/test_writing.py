"""Packets of streams as the bounded connection writes them: everything arrives, whatever is lost;
limits hold, streams take turns, and nothing is sent where `needs_transmit` says so."""

from __future__ import annotations

import random
import ssl
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent, StreamDataReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cli.local.certificates import Certificates
from outrider.tls import Role
from services.edge.limits.listener import MemoryBudget
from services.edge.quic.aioquic_shim import BoundedConnection, QuicLimits

ALPN = "outrider/1"
_CLIENT, _SERVER = ("127.0.0.1", 1), ("127.0.0.1", 2)
_STEP_S = 0.005
_MAX_STEPS = 4000


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = Certificates(tmp_path_factory.mktemp("tls")).issue(Role.EDGE, name="edge")
    assert made.certificate is not None and made.private_key is not None
    return made.certificate, made.private_key


class Pair:
    """A client and a server in one process; a datagram is lost with chance `loss`."""

    def __init__(self, tls: tuple[Path, Path], seed: int = 0, **client: Any) -> None:
        self.now = 1.0
        self.loss = 0.0
        self.rng = random.Random(seed)
        self.received: dict[int, bytearray] = defaultdict(bytearray)
        self.arrivals: list[int] = []
        """Streams in the order in which the client had something of them."""
        self.asked: dict[int, bytearray] = defaultdict(bytearray)
        settings = QuicConfiguration(
            is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE, **client
        )
        self.client = QuicConnection(configuration=settings)
        self.client.connect(_SERVER, self.now)
        own = QuicConfiguration(is_client=False, alpn_protocols=[ALPN])
        own.load_cert_chain(*tls)
        self.server = BoundedConnection(
            limits=QuicLimits(),
            budget=MemoryBudget(1 << 24),
            now=self.now,
            configuration=own,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        for data, _ in self.client.datagrams_to_send(self.now):
            self.server.receive_datagram(data, _CLIENT, self.now)
        for _ in range(40):
            self.step()

    def open(self, count: int) -> list[int]:
        """So many streams of the client, which the server knows."""
        streams = []
        for _ in range(count):
            stream = self.client.get_next_available_stream_id()
            self.client.send_stream_data(stream, b"ask")
            streams.append(stream)
        for _ in range(40):
            self.step()
        assert all(self.asked[stream] == b"ask" for stream in streams)
        return streams

    def step(self) -> None:
        """A moment: timers run out, each side sends what it has."""
        self.now += _STEP_S
        for one in (self.client, self.server):
            at = one.get_timer()
            if at is not None and at <= self.now:
                one.handle_timer(self.now)
        may_send = self.server.needs_transmit()
        sent = self.server.datagrams_to_send(self.now)
        assert may_send or not sent
        for data, _ in sent:
            if self.rng.random() >= self.loss:
                self.client.receive_datagram(data, _SERVER, self.now)
        while (event := self.client.next_event()) is not None:
            self._note(event, self.received)
        for data, _ in self.client.datagrams_to_send(self.now):
            if self.rng.random() >= self.loss:
                self.server.receive_datagram(data, _CLIENT, self.now)
        while (event := self.server.next_event()) is not None:
            self._note(event, self.asked)

    def _note(self, event: QuicEvent, into: dict[int, bytearray]) -> None:
        if isinstance(event, StreamDataReceived):
            into[event.stream_id] += event.data
            if into is self.received:
                self.arrivals.append(event.stream_id)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4000)), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([{}, {"max_data": 20_000, "max_stream_data": 3000}]),
)
def test_everything_arrives(
    tls: tuple[Path, Path],
    seed: int,
    writes: list[tuple[int, int]],
    loss: float,
    windows: dict[str, int],
) -> None:
    pair = Pair(tls, seed, **windows)
    streams = pair.open(8)
    pair.loss = loss
    sent: dict[int, bytearray] = defaultdict(bytearray)
    for which, size in writes:
        data = pair.rng.randbytes(size)
        pair.server.send_stream_data(streams[which], data, False)
        sent[streams[which]] += data
        if pair.rng.random() < 0.5:
            pair.step()
    for stream in streams:
        pair.server.send_stream_data(stream, b"end", True)
        sent[stream] += b"end"
    for _ in range(_MAX_STEPS):
        pair.step()
        if pair.received == sent:
            break
    assert pair.received == sent


def test_a_long_stream_does_not_hold_up_the_others(tls: tuple[Path, Path]) -> None:
    pair = Pair(tls)
    first, *others = pair.open(20)
    pair.server.send_stream_data(first, bytes(200_000), False)
    pair.step()
    for stream in others:
        pair.server.send_stream_data(stream, b"token", False)
    pair.arrivals.clear()
    while set(others) - set(pair.arrivals):
        pair.step()
    assert len(pair.received[first]) < 200_000


def test_an_acknowledgement_needs_no_answer(tls: tuple[Path, Path]) -> None:
    pair = Pair(tls)
    (stream,) = pair.open(1)
    for _ in range(40):
        pair.step()
    assert not pair.server.needs_transmit()
    pair.server.send_stream_data(stream, b"token", False)
    assert pair.server.needs_transmit()
    for _ in range(40):
        pair.step()
    assert pair.server.num_unacknowledged_bytes(stream) == 0
    assert not pair.server.needs_transmit()


def test_a_stream_that_is_reset_with_data_unsent_holds_up_no_other(tls: tuple[Path, Path]) -> None:
    pair = Pair(tls)
    first, second = pair.open(2)
    for size, end in ((200_000, False), (5, True)):  # more than may be in flight; and its end
        pair.server.send_stream_data(first, bytes(size), end)
    pair.step()
    pair.server.reset_stream(first, 1)
    pair.server.send_stream_data(second, b"token", False)
    for _ in range(40):
        pair.step()
    assert pair.received[second] == b"token" and len(pair.received[first]) < 200_000
    assert pair.server.num_unacknowledged_bytes(first) == 0
    assert not pair.server.needs_transmit()


def test_credit_is_given_for_what_was_read(tls: tuple[Path, Path]) -> None:
    pair = Pair(tls)
    stream = pair.client.get_next_available_stream_id()
    size = 3 << 20  # three windows of the connection
    pair.client.send_stream_data(stream, bytes(size), True)
    for _ in range(_MAX_STEPS):
        pair.step()
        if len(pair.asked[stream]) == size:
            break
    assert len(pair.asked[stream]) == size
