"""A stream whose client came back: it is sent what it lacks as its acknowledgements make room."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from outrider.codec.frames import FrameDecoder
from outrider.session.client import Accepted, Committed, Done
from outrider.session.types import FinishReason, ScoredToken, Timings, TokenLogprobs, Usage
from outrider.v1 import edge_pb2
from services.edge.chat.replay import ClientChannel, ReplayCursor
from services.edge.chat.stream import ENDED
from services.edge.limits.listener import ListenerLimits, MemoryBudget
from services.edge.quic.streams import EdgeStream
from services.edge.session.events import ClientFailed, ClientGone, Input

LIMIT = 32 << 10
LIKELY = tuple(ScoredToken(40_000 + rank, -1.0, b" word") for rank in range(20))
PIECE_BYTES = 32 << 10
"""More than 64 tokens with these take."""


class Wire:
    """The connection's QUIC: what is written stays until the client acknowledges it."""

    def __init__(self) -> None:
        self.unread = bytearray()
        self.most = 0
        self.read = FrameDecoder()
        self.frames: list[edge_pb2.EdgeFrame] = []
        self.has_ended = False
        self.was_reset = False

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        assert not self.has_ended
        self.unread += data
        self.most = max(self.most, len(self.unread))
        self.has_ended = end_stream

    def num_unacknowledged_bytes(self, stream_id: int) -> int:
        return len(self.unread)

    def reset_stream(self, stream_id: int, code: int) -> None:
        self.was_reset = True

    def stop_stream(self, stream_id: int, code: int) -> None:
        pass

    def acknowledge(self, count: int) -> None:
        for payload in self.read.feed(bytes(self.unread[:count])):
            self.frames.append(edge_pb2.EdgeFrame.FromString(payload))
        del self.unread[:count]


class Running:
    """The chat, as its stream sees it."""

    closed = False
    is_placed = True

    def __init__(self) -> None:
        self.fed: list[Input] = []

    def feed(self, item: Input) -> None:
        self.fed.append(item)

    def token_arrived(self) -> None:
        pass

    def client_lost(self) -> None:
        pass


class Returned:
    """A client that comes back to a chat which committed so many tokens while it was away."""

    def __init__(self, num_missed: int) -> None:
        self.wire = Wire()
        self.catching_up: set[EdgeStream] = set()
        self.forgotten = False
        self.stream = EdgeStream(cast(Any, self._connection()), 0)
        self.stream.handler.client_lost()
        self.chat = Running()
        self.stream.follow(self.chat)
        self.channel = ClientChannel(cast(Any, None), lambda: "t", ReplayCursor())
        self.channel.lose()
        self.num_tokens = 0
        self.channel.tell(Accepted("r", "m", 3))
        self.commit(num_missed)
        self.channel.join(self.stream, ReplayCursor())

    def _connection(self) -> SimpleNamespace:
        def catches_up(stream: EdgeStream, *, is_over: bool = False) -> None:
            (self.catching_up.discard if is_over else self.catching_up.add)(stream)

        def forget(stream_id: int) -> None:
            self.forgotten = True

        nothing: Callable[[], None] = lambda: None  # noqa: E731
        return SimpleNamespace(
            limits=ListenerLimits(max_unsent_bytes=LIMIT),
            transport=self.wire,
            budget=MemoryBudget(1 << 20),
            context=SimpleNamespace(request_timeout_s=10.0, name="edge"),
            transmit_soon=nothing,
            catches_up=catches_up,
            forget=forget,
        )

    def commit(self, count: int) -> None:
        for number in range(self.num_tokens, self.num_tokens + count):
            scored = TokenLogprobs(ScoredToken(number, -1.0, b"w"), LIKELY)
            self.channel.tell(Committed("w", (number,), number + 1, logprobs=(scored,)))
        self.num_tokens += count

    def finish(self) -> None:
        upto = self.num_tokens
        self.channel.tell(Done(FinishReason.STOP, Usage(), Timings(), Timings(), upto, "", ""))
        self.channel.end()

    def read(self, count: int) -> None:
        """The client acknowledges so many bytes; the connection goes on, as it does then."""
        self.wire.acknowledge(count)
        for stream in list(self.catching_up):
            stream.send_backlog()

    @property
    def ids(self) -> list[int]:
        return [it for frame in self.wire.frames for it in frame.commit.ids]


async def test_all_of_a_long_absence_arrives_while_the_chat_goes_on_and_ends() -> None:
    client = Returned(700)
    sizes = 0
    while client.catching_up:
        sizes += 1000
        if client.num_tokens < 1000:
            client.commit(3)
        elif client.stream.handler is not ENDED:
            client.finish()
        client.read(1000)
    client.read(1 << 20)
    assert sizes > 4 * LIMIT and client.wire.most < LIMIT // 2 + PIECE_BYTES
    assert client.wire.has_ended and client.chat.fed == [] and not client.wire.was_reset
    assert client.ids == list(range(client.num_tokens))
    kinds = [frame.WhichOneof("kind") for frame in client.wire.frames]
    assert kinds == ["accepted", *["commit"] * (len(kinds) - 2), "done"]
    assert sum(len(frame.commit.logprobs) for frame in client.wire.frames) == client.num_tokens


async def test_a_client_that_caught_up_may_leave_as_much_unread_as_any_other() -> None:
    client = Returned(400)
    while client.catching_up:
        client.read(1000)
    # Frames of one token have some 500 bytes.
    client.commit(LIMIT // 600)
    assert client.wire.most > LIMIT and client.chat.fed == []
    client.commit(LIMIT // 200)
    (failed,) = client.chat.fed
    assert isinstance(failed, ClientFailed) and failed.error.reason == "OVERLOADED"


async def test_a_client_that_does_not_read_while_it_catches_up_loses_nothing_but_time() -> None:
    client = Returned(400)
    client.commit(1000)
    client.stream.check_reading()
    client.stream.check_reading()
    assert client.chat.fed == [] and client.wire.most < LIMIT // 2 + PIECE_BYTES
    while client.catching_up:
        client.read(5000)
    client.read(1 << 20)
    assert client.ids == list(range(1400))


async def test_nobody_keeps_the_log_of_a_chat_that_is_over_by_not_reading_it() -> None:
    client = Returned(400)
    client.finish()
    client.stream.check_reading()
    kept = [len(client.catching_up)]
    client.stream.check_reading()
    kept.append(len(client.catching_up))
    assert kept == [1, 0], "it had read something before the first time"
    assert client.wire.was_reset and not client.wire.has_ended


async def test_a_stream_that_is_over_is_used_while_its_client_reads_what_is_left() -> None:
    client = Returned(0)
    assert client.stream.was_used() and client.stream.was_used(), "its chat is not over"
    client.finish()
    seen = [client.stream.was_used() for _ in range(2)]
    client.read(1)
    seen += [client.stream.was_used() for _ in range(2)]
    client.read(len(client.wire.unread))
    seen += [client.stream.was_used() for _ in range(2)]
    assert seen == [True, False, True, False, True, False]


async def test_a_stream_that_is_lost_or_replaced_is_sent_nothing_more() -> None:
    lost, replaced, stopped = Returned(400), Returned(400), Returned(400)
    lost.stream.lost(gave_up=False)
    lost.channel.lose()
    client = Returned(0)
    replaced.channel.join(client.stream, ReplayCursor())
    stopped.finish()
    stopped.stream.gone(client_ended=True)
    assert stopped.wire.was_reset and stopped.forgotten
    for one in (lost, replaced, stopped):
        assert not one.catching_up
        one.read(1 << 20)
        assert not one.wire.unread and len(one.ids) < 400
    assert replaced.wire.has_ended
    assert replaced.wire.frames[-1].error.reason == "DUPLICATE_SESSION"
    assert [type(item) for item in stopped.chat.fed] == []
    running = Returned(400)
    running.stream.gone(client_ended=True)
    assert [type(item) for item in running.chat.fed] == [ClientGone]
