"""One direction of a link: packets with due times (`Lane`, pure), and the event loop that delivers
what is due (`Pump`)."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_SEGMENT_BYTES = 1448
"""Payload of a TCP segment over Ethernet, with timestamps."""
_LEAST_TIMEOUT_MS = 200.0
"""What Linux adds to the round trip before it sends a TCP segment again, at least (TCP_RTO_MIN)."""
_LATENESS_BIN_MS = 0.05
_LAST_BIN = 2000
"""100 ms: whatever is later counts there."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How one direction of a link behaves."""

    delay_ms: float = 0.0
    """One way."""
    jitter_ms: float = 0.0
    """Each packet takes up to so much longer, drawn evenly from 0 to this."""
    in_order: bool = False
    """Whether a datagram that jitter would let overtake others waits for them."""
    loss: float = 0.0
    """Share of packets that are lost, each drawn on its own: of datagrams, or of the segments of a
    byte stream."""
    rate_mbit_s: float = 0.0
    """What it carries at most, 10^6 bits a second; packets wait for those before them. 0: any."""

    def __post_init__(self) -> None:
        if min(self.delay_ms, self.jitter_ms, self.rate_mbit_s) < 0 or not 0 <= self.loss < 1:
            raise ValueError(
                f"{self} is no link: times and rates are not negative, loss is 0 to below 1"
            )

    @property
    def retransmission_ms(self) -> float:
        """How much later a segment of a byte stream arrives of which the first copy was lost: TCP's
        timeout, a mean round trip and 200 ms (RFC 6298, with the minimum of Linux). The last
        segment in flight takes so long; others are repaired sooner, once later ones are
        acknowledged (RFC 8985), so this is an upper bound."""
        return 2 * self.delay_ms + self.jitter_ms + _LEAST_TIMEOUT_MS


@dataclass(slots=True)
class Traffic:
    """What went through a lane since it was last asked."""

    packets: int = 0
    """Datagrams, or reads from a TCP socket."""
    num_bytes: int = 0
    """Payload of UDP or TCP."""
    lost: int = 0
    """Datagrams lost on purpose, and reads from a TCP socket that came late in place of that."""
    dropped: int = 0
    """Datagrams for which the queue was full."""
    lateness: Counter[int] = field(default_factory=Counter)
    """How long after their due time packets left, in bins of 0.05 ms."""

    def left(self, late_ms: float) -> None:
        """A packet left this late."""
        self.lateness[min(_LAST_BIN, round(late_ms / _LATENESS_BIN_MS))] += 1

    def add(self, other: Traffic) -> None:
        """Count what went through another lane too."""
        self.packets += other.packets
        self.num_bytes += other.num_bytes
        self.lost += other.lost
        self.dropped += other.dropped
        self.lateness += other.lateness

    def lateness_ms(self, share: float) -> float:
        """Quantile of the delay that the relay itself added; 0 without packets."""
        left = share * self.lateness.total()
        for at in sorted(self.lateness):
            left -= self.lateness[at]
            if left <= 0:
                return at * _LATENESS_BIN_MS
        return 0.0

    def to_json(self) -> dict[str, Any]:
        """As it leaves the relay's process."""
        counts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**counts, "lateness": dict(self.lateness)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Traffic:
        """The inverse of `to_json`, after a way through JSON."""
        lateness = Counter({int(at): count for at, count in row["lateness"].items()})
        return cls(**{**row, "lateness": lateness})


class Lane(Generic[T]):
    """Packets under way. `send` puts one in, `due` takes out what has arrived by `now`."""

    def __init__(
        self, seed: int = 0, *, ordered: bool, max_bytes: int = 1 << 23, slack_s: float = 0.0
    ) -> None:
        """An `ordered` lane delivers in the order of sending and drops nothing: a byte stream, of
        which a loss holds up what follows. Others lose packets, overtake one another where jitter
        has it or the delay falls, and drop where too many are under way, as datagrams do. `seed`
        decides on jitter and losses. A packet up to `slack_s` before its time is taken out with the
        others."""
        self._rng = random.Random(seed)
        self._ordered = ordered
        self._max_bytes = max_bytes
        self._slack_s = slack_s
        self._queue: list[tuple[float, int, int, T]] = []
        self._last_due = float("-inf")
        self._free_at = float("-inf")
        """When the last byte so far has left, at the link's rate."""
        self._num_sent = 0
        self.queued_bytes = 0
        self.conditions = Conditions()
        self.traffic = Traffic()

    @property
    def full(self) -> bool:
        """Whether max_bytes are in flight."""
        return self.queued_bytes >= self._max_bytes

    def send(self, packet: T, num_bytes: int, now: float) -> bool:
        """Put a packet on its way at `now`, seconds; False if it was lost or dropped."""
        traffic, how = self.traffic, self.conditions
        traffic.packets += 1
        traffic.num_bytes += num_bytes
        repairs_ms = self._repairs_ms(num_bytes)
        if repairs_ms:
            traffic.lost += 1
            if not self._ordered:
                return False
        if not self._ordered and self.full:
            traffic.dropped += 1
            return False
        left_at = now
        if how.rate_mbit_s:
            left_at = max(now, self._free_at) + num_bytes * 8e-6 / how.rate_mbit_s
            self._free_at = left_at
        due = left_at + (how.delay_ms + repairs_ms + self._rng.random() * how.jitter_ms) / 1000
        if self._ordered or how.in_order:
            due = max(due, self._last_due)
        self._last_due = max(due, self._last_due)
        self._num_sent += 1
        heapq.heappush(self._queue, (due, self._num_sent, num_bytes, packet))
        self.queued_bytes += num_bytes
        return True

    def _repairs_ms(self, num_bytes: int) -> float:
        """What losses add to the time of a packet, or of a byte stream's slowest segment: the
        timeout of TCP, which doubles as often as a retransmission is lost too. 0: nothing is
        lost."""
        how, slowest_ms = self.conditions, 0.0
        for _ in range(-(-num_bytes // _SEGMENT_BYTES) if self._ordered else 1):
            repairs_ms, timeout_ms = 0.0, how.retransmission_ms
            while self._rng.random() < how.loss:
                repairs_ms += timeout_ms
                timeout_ms *= 2
            slowest_ms = max(slowest_ms, repairs_ms)
        return slowest_ms

    def due(self, now: float) -> list[T]:
        """Take out what has arrived by `now`, first to last."""
        arrived = []
        while self._queue and self._queue[0][0] <= now + self._slack_s:
            at, _, num_bytes, packet = heapq.heappop(self._queue)
            self.queued_bytes -= num_bytes
            self.traffic.left(max(0.0, now - at) * 1000)
            arrived.append(packet)
        return arrived

    def next_due(self) -> float | None:
        """When the next packet arrives; None while nothing is under way."""
        return self._queue[0][0] if self._queue else None

    def take_traffic(self) -> Traffic:
        """The counts so far, which begin anew."""
        taken, self.traffic = self.traffic, Traffic()
        return taken


_SLACK_S = 50e-6
"""A timer of the loop fires up to its clock's resolution early."""


class Pump(Generic[T]):
    """Feeds a lane and empties it on time: one timer, armed for the next packet."""

    def __init__(self, deliver: Callable[[T], None], seed: int = 0, *, ordered: bool) -> None:
        self.lane: Lane[T] = Lane(seed, ordered=ordered, slack_s=_SLACK_S)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._closed = False

    def send(self, packet: T, num_bytes: int) -> None:
        """Put a packet on its way; without a delay it is there at once."""
        if not self._closed:
            self.lane.send(packet, num_bytes, self._loop.time())
            self._run()

    def close(self) -> None:
        """What is still under way never arrives."""
        self._closed = True
        self._arm(None)

    def _run(self) -> None:
        for packet in self.lane.due(self._loop.time()):
            self._deliver(packet)
        self._arm(None if self._closed else self.lane.next_due())

    def _arm(self, at: float | None) -> None:
        if at == self._armed_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = at
        self._timer = None if at is None else self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = self._armed_at = None
        self._run()
