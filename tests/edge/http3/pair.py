"""A client's and a server's QUIC connection joined in memory, with HTTP/3 on the server's side."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from services.edge.http3.framing import ConnectionFault
from services.edge.http3.limits import Http3Limits
from services.edge.http3.messages import Refusal, Request
from services.edge.http3.server import ALPN, Http3Service
from services.edge.http3.session import Http3Session, RequestStream
from services.edge.http3.webtransport import Close
from services.edge.limits.listener import MemoryBudget
from services.edge.quic.aioquic_shim import BoundedConnection, QuicLimits
from tests.edge.http3.client import Response, request_headers

_CLIENT = ("127.0.0.1", 1)
_SERVER = ("127.0.0.1", 2)


@dataclass
class Host:
    """Keeps what it was to begin; the tests play the application."""

    begun: list[RequestStream] = field(default_factory=list)
    num_held: int = 0
    most_held: int = 0
    max_streams: int = 1000
    has_room: bool = True
    sessions: list[int] = field(default_factory=list)
    closed_sessions: list[tuple[int, Close | None]] = field(default_factory=list)
    session_data: list[tuple[int, bytes, bool]] = field(default_factory=list)
    owned_streams: set[int] = field(default_factory=set)

    def hold_stream(self) -> bool:
        if self.num_held >= self.max_streams:
            return False
        self.num_held += 1
        self.most_held = max(self.most_held, self.num_held)
        return True

    def release_stream(self) -> None:
        self.num_held -= 1

    def may_begin(self) -> bool:
        return self.has_room

    def date(self) -> bytes:
        return b"now"

    def worded(self, refusal: Refusal, request: Request) -> Refusal:
        return replace(refusal, text=f"{refusal.text}: {request.path}")

    def begin(self, stream: RequestStream) -> None:
        self.begun.append(stream)

    def session_refusal(self, request: Request) -> Refusal | None:
        return None if request.path == "/session" else Refusal(404, "elsewhere")

    def session_opened(self, session_id: int) -> None:
        self.sessions.append(session_id)

    def session_closed(self, session_id: int, close: Close | None) -> None:
        self.closed_sessions.append((session_id, close))

    def session_received(self, stream_id: int, data: bytes, has_ended: bool) -> None:
        self.owned_streams.add(stream_id)
        self.session_data.append((stream_id, data, has_ended))


class Pair:
    """`now` is the time on both sides, in seconds."""

    def __init__(
        self, certificate: Path, key: Path, max_budget: int = 1 << 20, **limits: Any
    ) -> None:
        self.now = 0.0
        self.host = Host()
        self.budget = MemoryBudget(max_budget)
        self.fault: ConnectionFault | None = None
        self.responses: dict[int, Response] = {}
        self.client = QuicConnection(
            configuration=QuicConfiguration(
                is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE
            )
        )
        self.client.connect(_SERVER, self.now)
        configuration = QuicConfiguration(
            is_client=False, alpn_protocols=[ALPN], max_datagram_frame_size=65_535
        )
        configuration.load_cert_chain(certificate, key)
        self.quic = BoundedConnection(
            limits=QuicLimits(protocols={ALPN: Http3Service.limits}),
            budget=MemoryBudget(1 << 30),
            now=self.now,
            configuration=configuration,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self._limits = Http3Limits(**limits)
        self.session: Http3Session
        self.h3: H3Connection
        self.deliver()

    @property
    def closed(self) -> ConnectionTerminated | None:
        """How the server closed the connection."""
        return self.client._close_event

    def deliver(self) -> None:
        """Datagrams both ways, until there are none."""
        for _ in range(10_000):
            self.now += 0.001
            to_server = self.client.datagrams_to_send(self.now)
            for data, _ in to_server:
                self.quic.receive_datagram(data, _CLIENT, self.now)
                self._events()
            to_client = self.quic.datagrams_to_send(self.now)
            for data, _ in to_client:
                self.client.receive_datagram(data, _SERVER, self.now)
            while (event := self.client.next_event()) is not None:
                self._client_event(event)
            if not (to_server or to_client):
                return
        raise AssertionError("the two never stop talking")

    def pass_time(self, seconds: float) -> list[RequestStream]:
        """Later; returns the requests whose application is to be cancelled."""
        self.now += seconds
        late = self.session.expire(self.now)
        self.deliver()
        return late

    def ask(
        self,
        method: str = "GET",
        path: str = "/",
        body: bytes | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        *,
        ends: bool = True,
    ) -> Response:
        response = self.open()
        section = request_headers(method, path, headers)
        self.h3.send_headers(response.stream_id, section, ends and body is None)
        if body is not None:
            self.h3.send_data(response.stream_id, body, ends)
        self.deliver()
        return response

    def open(self) -> Response:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_stream_data(stream_id, b"")
        response = self.responses[stream_id] = Response(stream_id)
        return response

    def raw(self, data: bytes, *, ends: bool = False) -> Response:
        response = self.open()
        self.client.send_stream_data(response.stream_id, data, ends)
        self.deliver()
        return response

    def raw_control(self, data: bytes) -> int:
        """Bytes on a new unidirectional stream."""
        stream_id = self.client.get_next_available_stream_id(is_unidirectional=True)
        self.client.send_stream_data(stream_id, data)
        self.deliver()
        return stream_id

    def answer(self, stream: RequestStream, data: bytes = b"", *, more: bool = False) -> None:
        """What an application sends."""
        start = {"type": "http.response.start", "status": 200, "headers": []}
        self.session.send(stream, start, self.now)
        self.go_on(stream, data, more=more)

    def go_on(self, stream: RequestStream, data: bytes, *, more: bool = False) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": more}
        self.session.send(stream, message, self.now)
        if not more:
            self.session.returned(stream, self.now)
        self.deliver()

    def _events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.session = Http3Session(
                    self.quic, self.budget, self._limits, self.host, self.now
                )
            elif self.fault is None:
                try:
                    self._feed(event)
                except ConnectionFault as fault:
                    self.fault = fault
                    self.quic.close(fault.code, reason_phrase=fault.reason)
        if self.fault is None and hasattr(self, "session"):
            self.session.acknowledged(self.now)

    def _feed(self, event: QuicEvent) -> None:
        match event:
            case StreamDataReceived(data, end_stream, stream_id) if (
                stream_id in self.host.owned_streams
            ):
                self.host.session_received(stream_id, data, end_stream)
            case StreamDataReceived(data, end_stream, stream_id):
                self.session.received(stream_id, data, end_stream, self.now)
            case StreamReset(stream_id=stream_id):
                self.session.reset(stream_id, self.now)
            case StopSendingReceived(stream_id=stream_id):
                self.session.stopped(stream_id, self.now)

    def _client_event(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.h3 = H3Connection(self.client)
            self.h3._check_content_length = lambda stream: None  # type: ignore[method-assign]
        if isinstance(event, StreamReset) and event.stream_id in self.responses:
            self.responses[event.stream_id].failed(event.error_code)
        if isinstance(event, StopSendingReceived) and event.stream_id in self.responses:
            self.responses[event.stream_id].stop_code = event.error_code
        if not hasattr(self, "h3"):
            return
        for it in self.h3.handle_event(event):
            if isinstance(it, HeadersReceived):
                self.responses[it.stream_id].fields(it.headers, it.stream_ended)
            elif isinstance(it, DataReceived):
                self.responses[it.stream_id].data(it.data, it.stream_ended)
