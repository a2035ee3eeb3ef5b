"""Fetches a document from a web server, within a time and a size whatever the server does."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

_CHUNK_BYTES: Final = 16 << 10


def read_url(
    url: str,
    *,
    ca: Path | None = None,
    timeout_s: float,
    max_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """The first `max_bytes` of the document at `url`, without following redirects. `ca` verifies
    the server's certificate; None: the system's CAs. Blocks for at most `timeout_s` once connected,
    and as long to connect to each address of the server. Raises TimeoutError, OSError,
    HTTPException, ValueError."""
    deadline = _Deadline(timeout_s, clock)
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    opener = build_opener(_NoRedirects, _Http(deadline), _Https(deadline, context))
    text = b""
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            while len(text) < max_bytes and (piece := answer.read1(_CHUNK_BYTES)):
                text += piece
    except URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise error.reason from error
        raise
    return text[:max_bytes]


class _Deadline:
    """When everything has to be over."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock() + timeout_s

    @property
    def left_s(self) -> float:
        """Above 0. Raises TimeoutError when nothing is left."""
        left_s = self._at - self._clock()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _Reader(io.RawIOBase):
    """Reads a socket until the deadline. A socket's own timeout starts anew with every read, so a
    server that sends a byte now and then could hold the reader for ever."""

    def __init__(self, connection: socket.socket, deadline: _Deadline) -> None:
        self._connection = connection
        self._deadline = deadline
        self._file = connection.makefile("rb", buffering=0)
        """Keeps the socket open: the connection's own object is closed before the body is read."""

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Raises TimeoutError."""
        self._connection.settimeout(self._deadline.left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Close the file, and with it the socket if it has no other user."""
        if not self.closed:
            self._file.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, deadline: _Deadline, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, deadline))


def _connection(
    kind: type[HTTPConnection], deadline: _Deadline, host: str, **options: Any
) -> HTTPConnection:
    made = kind(host, **options)
    made.response_class = partial(_Response, deadline)  # type: ignore[assignment]
    return made


class _Http(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._connect = partial(_connection, HTTPConnection, deadline)

    def http_open(self, req: Request) -> HTTPResponse:
        """Open as HTTPHandler does, within the deadline."""
        return self.do_open(self._connect, req)


class _Https(HTTPSHandler):
    def __init__(self, deadline: _Deadline, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._connect = partial(_connection, HTTPSConnection, deadline, context=context)

    def https_open(self, req: Request) -> HTTPResponse:
        """Open as HTTPSHandler does, within the deadline."""
        return self.do_open(self._connect, req)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: object, **kwargs: object) -> None:
        """Refuse all redirects."""
