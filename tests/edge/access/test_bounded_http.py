"""What a server may cost whoever reads a document of it: a real server, and a clock of the test."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.edge.access.bounded_http import read_url
from services.edge.quic.certificate import ensure

BODY = b"x" * 40
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Dribbler:
    """Answers one request a byte at a time: one for each look at its clock, which goes on by a
    second with each. So a read never waits, however long the whole takes."""

    def __init__(self, answer: bytes, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._allowed = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self.now = 0.0
        self.num_sent = 0

    def clock(self) -> float:
        """Seconds."""
        self.now += 1.0
        self._allowed.release()
        return self.now

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._listener.accept()[0] as plain:
            served = plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)
            with served:
                served.recv(65536)
                for byte in self._answer:
                    self._allowed.acquire()
                    served.sendall(bytes([byte]))
                    self.num_sent += 1

    @contextmanager
    def serving(self) -> Iterator[Dribbler]:
        """While this lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._listener.close()
            self._allowed.release(len(self._answer))
            self._thread.join()


def read(server: Dribbler, timeout_s: float, max_bytes: int = 1000) -> bytes:
    url = f"http://127.0.0.1:{server.port}/keys"
    return read_url(url, timeout_s=timeout_s, max_bytes=max_bytes, clock=server.clock)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 " + b"x" * 5000, id="status line"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90, id="head"),
        pytest.param(HEAD.replace(b"40", b"5000") + b"x" * 5000, id="body"),
        pytest.param(CHUNKED + b"1;" + b"x" * 5000, id="size of a chunk"),
        pytest.param(CHUNKED + b"1\r\nx\r\n" * 1000, id="chunks"),
        pytest.param(CHUNKED + b"0\r\n" + b"A: b\r\n" * 900, id="trailers"),
    ],
)
def test_a_server_that_dribbles_is_left_in_time(answer: bytes) -> None:
    with Dribbler(answer).serving() as server:
        with pytest.raises(TimeoutError):
            read(server, timeout_s=100.0)
        assert server.num_sent <= 102


def test_a_slow_server_may_take_all_of_the_time() -> None:
    with Dribbler(HEAD + BODY).serving() as server:
        assert read(server, timeout_s=len(HEAD + BODY) + 5.0) == BODY


def test_a_server_that_says_nothing_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        read_url(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.05, max_bytes=10)


def test_no_more_is_read_than_wanted() -> None:
    with Dribbler(HEAD + BODY).serving() as server:
        assert read(server, 1000.0, max_bytes=7) == BODY[:7]
        assert server.num_sent < len(HEAD + BODY)


def test_encrypted_servers_are_left_in_time_too(tmp_path: Path) -> None:
    ca, key = ensure(tmp_path, (), datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)

    def read_safely(server: Dribbler, timeout_s: float) -> bytes:
        url = f"https://127.0.0.1:{server.port}/keys"
        return read_url(url, ca=ca, timeout_s=timeout_s, max_bytes=1000, clock=server.clock)

    with Dribbler(HEAD + BODY, context).serving() as server:
        assert read_safely(server, 1000.0) == BODY
    with Dribbler(HEAD + BODY, context).serving() as server:
        with pytest.raises(TimeoutError):
            read_safely(server, 30.0)
        assert server.num_sent <= 32
