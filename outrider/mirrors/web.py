"""Mirrors over HTTP: `https://HOST/PATH`, a folder at a web server, and `peer://HOST:PORT`, a
process of the mesh that runs `outrider models serve`.

Both are asked for whole files or the rest of one (RFC 9110, section 14). They differ in trust: a
web server is verified by this machine's CAs and its own name; a peer by the mesh's CA and the role
`models`, and this process shows the peer its own certificate.
"""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final
from urllib.parse import urlsplit

from outrider.mirrors.mirror import (
    READ_BYTES,
    TIMEOUT_S,
    BrokeOffError,
    LacksError,
    RefusedError,
)
from outrider.models.sources.web import open_url
from outrider.tls import Role, Tls

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class WebMirror:
    """A folder at a web server."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def text(self) -> str:
        return self._url

    @contextmanager
    def open(self, name: str, offset: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        request = urllib.request.Request(f"{self._url}/{name}", headers=_headers(offset))  # noqa: S310 - open_mirror admits https only
        with _faults(), self._answer(request) as answer:
            yield _begin(answer), _pieces(answer)

    def _answer(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        try:
            return open_url(request, TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise _of_status(error.code) from error


class PeerMirror:
    """Another process of the mesh."""

    def __init__(self, host: str, port: int, tls: Tls) -> None:
        """Raises ConfigError for another machine without certificates."""
        if tls.current is None:
            tls.config.check_reach(host, "fetch models from")
        self._host, self._port, self._tls = host, port, tls

    @property
    def text(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"peer://{host}:{self._port}"

    @contextmanager
    def open(self, name: str, offset: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        with _faults(), closing(self._connection()) as connection:
            connection.request("GET", f"/{name}", headers=_headers(offset))
            answer = connection.getresponse()
            if answer.status not in (200, 206):
                raise _of_status(answer.status)
            yield _begin(answer), _pieces(answer)

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls.current is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        return _MeshConnection(self._host, self._port, self._tls)


class _MeshConnection(http.client.HTTPConnection):
    """A connection over mutual TLS to a server with a certificate of the role `models`, whatever
    its address."""

    def __init__(self, host: str, port: int, tls: Tls) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._name = tls.server_name(Role.MODELS)
        config = tls.config
        assert config.certificate and config.private_key and config.ca, "Tls has all or none"
        # The files as they are now: each connection notices a rotation.
        self._context = ssl.create_default_context(cafile=config.ca)
        self._context.load_cert_chain(config.certificate, config.private_key)

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def _headers(offset: int) -> dict[str, str]:
    headers = {"User-Agent": "outrider", "Accept-Encoding": "identity"}
    return headers | ({"Range": f"bytes={offset}-"} if offset else {})


def _begin(answer: http.client.HTTPResponse) -> int:
    if answer.status != 206:
        return 0
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        raise RefusedError("it answers a range without saying which")
    return int(match[1])


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    # `read1` gives what there is: what came before a connection broke is kept.
    while piece := answer.read1(READ_BYTES):
        yield piece
    if answer.length:  # announced, and not sent
        raise BrokeOffError(f"the connection ended {answer.length} bytes too soon")


def _of_status(status: int) -> Exception:
    if status in (404, 410):
        return LacksError()
    if status in (401, 403):
        return RefusedError(f"it answers {status}; this process may not fetch there")
    if status in _RETRIED:
        return BrokeOffError(f"it answers {status}")
    return RefusedError(f"it answers {status}; check the address")


@contextmanager
def _faults() -> Iterator[None]:
    """Turn the network's exceptions into BrokeOffError, which is worth another attempt, or
    RefusedError."""
    try:
        yield
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise RefusedError(f"bad certificate: {error.reason}") from error
        raise BrokeOffError(f"{error.reason}") from error
    except ssl.SSLCertVerificationError as error:
        raise RefusedError(f"bad certificate: {error.verify_message}") from error
    except (http.client.HTTPException, OSError) as error:
        raise BrokeOffError(f"{type(error).__name__}: {error}") from error


def host_and_port(url: str) -> tuple[str, int] | None:
    """Host and port of `peer://HOST:PORT`; None for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    return (host, port) if parts.scheme == "peer" and host and port and plain else None
