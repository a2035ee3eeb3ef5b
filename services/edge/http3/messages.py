"""HTTP messages: a request's header section becomes an ASGI scope, an application's response
becomes a header section (pure).

Anything that RFC 9110 and RFC 9114 do not exactly allow is refused: request smuggling relies on two
readers that understand one message differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from outrider.errors import MalformedFrameError

Headers: TypeAlias = list[tuple[bytes, bytes]]
Message: TypeAlias = MutableMapping[str, Any]
"""An ASGI message; see https://asgi.readthedocs.io/en/latest/specs/www.html."""

CONNECTION: Final = "outrider-connection"
"""Our ASGI extension: `secret`, 16 random bytes that the requests of a connection share; `budget`,
the MemoryBudget for what its client sent; `abort`, which ends the request at once."""
FIELD_OVERHEAD_BYTES: Final = 32
"""Bytes that a field counts besides name and value (RFC 9114, section 4.2.2)."""
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_FIELD_VALUE: Final = re.compile(
    rb"([\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?"
)
_AUTHORITY: Final = re.compile(rb"[0-9A-Za-z!$%&'()*+,;=._~:\[\]-]+")
"""Authority of RFC 3986, section 3.2, without user information (RFC 9114, section 4.3.1)."""
_PATH: Final = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_STATUS: Final = range(200, 600)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path", b":protocol"))
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
"""Never in HTTP/3 (RFC 9114, section 4.2)."""
WITHOUT_BODY: Final = frozenset((204, 205, 304))


@dataclass(frozen=True, slots=True)
class Request:
    """The header section of a request that can be served."""

    method: str
    scheme: str
    path: str
    """Decoded."""
    raw_path: bytes
    """The path as received, without the query."""
    query_string: bytes
    headers: Headers
    """With `host` first, in lower case."""
    protocol: str = ""
    """Of an extended CONNECT (RFC 9220), which asks for a tunnel; empty: it is another request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is answered without the application."""

    status: int
    text: str
    retry_after_s: int = 0
    content_type: bytes = b"text/plain; charset=utf-8"
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the response."""

    @property
    def headers(self) -> Headers:
        """Headers of the response."""
        made: Headers = [
            (b":status", b"%d" % self.status),
            (b"content-type", self.content_type),
            (b"content-length", b"%d" % len(self.body)),
            *self.fields,
        ]
        if self.retry_after_s:
            made.append((b"retry-after", b"%d" % self.retry_after_s))
        return made

    @property
    def body(self) -> bytes:
        """Body of the response."""
        return self.text.encode() + b"\n" if self.text else b""


def section_bytes(headers: Headers) -> int:
    """The size of a header section, as RFC 9114, section 4.2.2, counts it."""
    return sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in headers)


def read_request(headers: Headers) -> Request | Refusal:
    """The request of this header section. Raises MalformedFrameError: the stream must then be reset
    (RFC 9114, section 4.1.2)."""
    pseudo, fields = _split(headers)
    method = pseudo.get(b":method", b"")
    _check(_TOKEN.fullmatch(method), "no valid :method")
    protocol = pseudo.get(b":protocol", b"")
    if b":protocol" in pseudo:
        _check(method == b"CONNECT" and _TOKEN.fullmatch(protocol), ":protocol is of CONNECT alone")
    elif method == b"CONNECT":
        _check(set(pseudo) == {b":method", b":authority"}, "CONNECT has :method and :authority")
        return Refusal(501, "this edge opens no tunnels")
    _check(pseudo.keys() >= {b":method", b":scheme", b":path"}, "a pseudo header is missing")
    scheme, target = pseudo[b":scheme"], pseudo[b":path"]
    _check(scheme in (b"https", b"http"), ":scheme is neither https nor http")
    authority = _authority(pseudo, fields)
    if target == b"*" and method == b"OPTIONS":
        return Refusal(501, "name a path")
    _check(_PATH.fullmatch(target), ":path is no path")
    raw_path, _, query = target.partition(b"?")
    _content_length(fields)
    return Request(
        method=method.decode(),
        scheme=scheme.decode(),
        path=unquote_to_bytes(raw_path).decode("utf-8", "replace"),
        raw_path=raw_path,
        query_string=query,
        headers=[(b"host", authority), *_with_one_cookie(fields)],
        protocol=protocol.decode(),
    )


def check_trailers(headers: Headers) -> None:
    """The trailer section of a request. Raises MalformedFrameError."""
    pseudo, fields = _split(headers)
    _check(not pseudo, "trailers have no pseudo headers")
    _check(all(name != b"content-length" for name, _ in fields), "content-length is no trailer")


def scope_of(
    request: Request,
    *,
    client: tuple[str, int] | None,
    server: tuple[str, int] | None,
    state: Mapping[str, Any],
    connection: Mapping[str, Any],
) -> Message:
    """The ASGI connection scope. Version 2.3 of the HTTP specification: applications learn that
    their client is gone from `receive`, perhaps at once, rather than from a failing `send`.
    `connection`: contents of the extension CONNECTION."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "3",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query_string,
        "root_path": "",
        "headers": request.headers,
        "client": client,
        "server": server,
        "state": dict(state),
        "extensions": {"http.response.trailers": {}, CONNECTION: dict(connection)},
    }


def response_headers(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The header section of an application's response. Raises ValueError for what HTTP does not
    allow. Connection-specific fields, which other versions of HTTP know, are left out."""
    if status not in _STATUS:
        raise ValueError(f"{status} is no status of a response")
    return [(b":status", b"%d" % status), *response_fields(headers)]


def response_fields(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Fields of an application. Raises ValueError."""
    fields = []
    for name, value in headers:
        name, value = bytes(name).lower(), bytes(value).strip(b" \t")
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"{name!r} is no header that can be sent")
        if name not in _CONNECTION_SPECIFIC:
            fields.append((name, value))
    return fields


def declared_length(headers: Headers) -> int | None:
    """Declared length of a response's body; None without one. Raises ValueError."""
    try:
        return _content_length(headers)
    except MalformedFrameError as error:
        raise ValueError(str(error)) from error


def _check(holds: object, what: str) -> None:
    if not holds:
        raise MalformedFrameError(f"this is no HTTP/3 request: {what}")


def _split(headers: Headers) -> tuple[dict[bytes, bytes], Headers]:
    """Pseudo headers and fields (RFC 9114, sections 4.2 and 4.3)."""
    pseudo: dict[bytes, bytes] = {}
    fields: Headers = []
    for name, value in headers:
        _check(_FIELD_VALUE.fullmatch(value), "a header's value has characters it cannot have")
        if name.startswith(b":"):
            _check(not fields, "a pseudo header follows a header")
            _check(name in _PSEUDO and name not in pseudo, "a pseudo header that is not expected")
            pseudo[name] = value
            continue
        _check(_FIELD_NAME.fullmatch(name), "a header's name has characters it cannot have")
        _check(name not in _CONNECTION_SPECIFIC, "a header of HTTP/1.1 alone")
        _check(name != b"te" or value.lower() == b"trailers", "te is trailers, if anything")
        fields.append((name, value))
    return pseudo, fields


def _authority(pseudo: dict[bytes, bytes], fields: Headers) -> bytes:
    """RFC 9114, section 4.3.1: :authority and host agree, and one of them is there."""
    named = {value for name, value in fields if name == b"host"}
    if b":authority" in pseudo:
        named.add(pseudo[b":authority"])
    _check(len(named) == 1, ":authority and host differ, or there is neither")
    (authority,) = named
    _check(_AUTHORITY.fullmatch(authority), "the authority has characters it cannot have")
    return authority.lower()


def _content_length(fields: Headers) -> int | None:
    lengths = [value for name, value in fields if name == b"content-length"]
    if not lengths:
        return None
    _check(len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]), "no valid content-length")
    return int(lengths[0])


def _with_one_cookie(fields: Headers) -> Headers:
    """RFC 9114, section 4.2.1: cookies may come in pieces, which others expect as one field."""
    cookies = [value for name, value in fields if name == b"cookie"]
    others = [(name, value) for name, value in fields if name not in (b"host", b"cookie")]
    return [*others, (b"cookie", b"; ".join(cookies))] if cookies else others
