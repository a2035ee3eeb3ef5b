"""The signed list of a mesh's edges, from which clients learn where edges are (pure).

A list is a JSON object, in exactly one form: indented by one space, names in order, ASCII alone, a
line feed at its end. So a list has one sequence of bytes, and a file that differs in any of them is
no list.

    {
     "edges": [
      {
       "host": "edge.us.example.net",
       "port": 4433,
       "region": "us-east"
      }
     ],
     "signature": "...",
     "valid_until": 1830000000,
     "version": 1800000000
    }

`signature` is Ed25519's (RFC 8032), in base64, of a line that names the purpose and the same object
without it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from outrider.errors import EdgeListError
from outrider.models.strict_json import read_object

MAX_EDGES: Final = 64
MAX_BYTES: Final = 16 << 10
"""Of a list with its signature."""

_PURPOSE: Final = b"outrider edge list 1\n"
"""Signed before the list: a signature for anything else is none of a list."""
_KEY_PREFIX: Final = "ed25519:"
_MAX_NUMBER: Final = (1 << 53) - 1
"""What every reader of JSON tells from its neighbours."""
_MAX_HOST_CHARS: Final = 253
_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_REGION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ListedEdge:
    """Where one edge is. Raises EdgeListError for what no edge can have."""

    host: str
    """A name in lower case, or an address."""
    port: int
    """UDP port of QUIC."""
    tcp_port: int | None = None
    """TCP port of HTTP, if it is not the same number."""
    region: str = ""
    """Where it is, for readers; empty: not said."""
    server_name: str = ""
    """The name in its certificate, if it is not `host`."""

    def __post_init__(self) -> None:
        _check(_is_host(self.host), f"{self.host!r:.300} is no name or address of an edge")
        for port in (self.port, self.port if self.tcp_port is None else self.tcp_port):
            _check(_is_number(port, 0xFFFF), f"{port!r:.100} is no port of {self.host}")
        _check(
            self.region == "" or _matches(_REGION, self.region),
            f"{self.region!r:.100} is no region's name: letters, digits and ._-, at most 64",
        )
        _check(
            self.server_name == "" or _is_host(self.server_name),
            f"{self.server_name!r:.300} is no name in a certificate",
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EdgeList:
    """The edges of a mesh, as its operator named them at one time. Raises EdgeListError for too
    many edges, or none, and numbers out of range."""

    edges: tuple[ListedEdge, ...]
    """In the operator's order."""
    version: int
    """Higher than that of every list before; by default the time of signing."""
    valid_until: int
    """Seconds since 1970 from which on the list counts no more."""

    def __post_init__(self) -> None:
        _check(
            0 < len(self.edges) <= MAX_EDGES,
            f"a list has 1 to {MAX_EDGES} edges, not {len(self.edges)}",
        )
        places = {(edge.host, edge.port) for edge in self.edges}
        _check(len(places) == len(self.edges), "the list names an edge twice")
        for number, name in ((self.version, "version"), (self.valid_until, "valid_until")):
            _check(_is_number(number, _MAX_NUMBER), f"{name} is a whole number from 1")

    def has_ended(self, now: float) -> bool:
        """Whether it counts no more, at a time in seconds since 1970."""
        return now >= self.valid_until


@dataclass(frozen=True, slots=True)
class SignedEdgeList:
    """A list and its signature, which `check` has not seen yet."""

    edges: EdgeList
    signature: bytes

    def check(self, keys: Iterable[Ed25519PublicKey]) -> EdgeList:
        """The list, if one of the keys signed it. Raises EdgeListError."""
        text = _to_sign(self.edges)
        for key in keys:
            try:
                key.verify(self.signature, text)
            except InvalidSignature:
                continue
            return self.edges
        raise EdgeListError("the list of edges is signed by none of the keys that are trusted")

    def encoded(self) -> bytes:
        """The list as it is kept and sent. Raises EdgeListError if it is too long."""
        signature = base64.b64encode(self.signature).decode()
        text = _encoded(_fields(self.edges) | {"signature": signature})
        _check(len(text) <= MAX_BYTES, f"a list of edges has at most {MAX_BYTES} bytes")
        return text


def sign(edges: EdgeList, key: Ed25519PrivateKey) -> SignedEdgeList:
    """Sign a list."""
    return SignedEdgeList(edges, key.sign(_to_sign(edges)))


def read(text: bytes) -> SignedEdgeList:
    """A list out of its bytes, whoever signed it. Raises EdgeListError."""
    _check(len(text) <= MAX_BYTES, f"a list of edges has at most {MAX_BYTES} bytes")
    try:
        stored = read_object(text)
    except (ValueError, RecursionError) as error:
        raise EdgeListError(f"this is no list of edges: {error}") from error
    rows = _field(stored, "edges", list)
    try:
        signature = base64.b64decode(_field(stored, "signature", str))
    except ValueError as error:
        raise EdgeListError("the signature of the list of edges is no base64") from error
    _check(len(rows) <= MAX_EDGES, f"a list has 1 to {MAX_EDGES} edges, not {len(rows)}")
    edges = EdgeList(
        tuple(_edge(row) for row in rows),
        _field(stored, "version", int),
        _field(stored, "valid_until", int),
    )
    found = SignedEdgeList(edges, signature)
    _check(
        found.encoded() == text,
        "the list of edges is not as `outrider edges sign` wrote it; take its file unchanged",
    )
    return found


def accepted(
    text: bytes, keys: Iterable[Ed25519PublicKey], now: float, newest: EdgeList | None = None
) -> EdgeList:
    """The list in these bytes, if it may be used: signed by one of the keys, not ended, and not
    older than `newest`, the last one that was accepted. Raises EdgeListError."""
    edges = read(text).check(keys)
    _check(
        not edges.has_ended(now), "the list of edges has ended; its operator has to sign it anew"
    )
    if newest is not None:
        _check(
            edges.version >= newest.version,
            f"the list of edges has version {edges.version}, and {newest.version} is known: it "
            "is an old one",
        )
        _check(
            edges == newest or edges.version != newest.version,
            f"two lists of edges have version {edges.version}; sign one with a higher number",
        )
    return edges


# --- keys ---


def key_text(key: Ed25519PublicKey) -> str:
    """A public key as programs name it."""
    return _KEY_PREFIX + base64.b64encode(key.public_bytes_raw()).decode()


def read_key(text: str) -> Ed25519PublicKey:
    """A public key out of its text. Raises EdgeListError."""
    try:
        raw = base64.b64decode(text.removeprefix(_KEY_PREFIX), validate=True)
        key = Ed25519PublicKey.from_public_bytes(raw)
    except ValueError as error:
        raise EdgeListError(f"{text!r:.100} is no key for lists of edges: {error}") from error
    _check(
        key_text(key) == text,
        f"{text!r:.100} is no key for lists of edges; `outrider edges key` prints one",
    )
    return key


def private_pem(key: Ed25519PrivateKey) -> bytes:
    """A private key as its file has it (PKCS #8)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_private(pem: bytes) -> Ed25519PrivateKey:
    """A private key out of its file. Raises EdgeListError."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise EdgeListError("this is no private key of `outrider edges key`") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise EdgeListError("lists of edges are signed with Ed25519; this key is of another kind")
    return key


# --- the form ---


def _to_sign(edges: EdgeList) -> bytes:
    return _PURPOSE + _encoded(_fields(edges))


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def _fields(edges: EdgeList) -> dict[str, Any]:
    rows = []
    for edge in edges.edges:
        row: dict[str, Any] = {"host": edge.host, "port": edge.port}
        if edge.tcp_port is not None:
            row["tcp_port"] = edge.tcp_port
        row |= {name: it for name in ("region", "server_name") if (it := getattr(edge, name))}
        rows.append(row)
    return {"edges": rows, "version": edges.version, "valid_until": edges.valid_until}


def _edge(row: object) -> ListedEdge:
    """Fields that are unknown are found by `read`: they are missing in what is written again."""
    if not isinstance(row, Mapping):
        raise EdgeListError("edges is a list of objects")
    return ListedEdge(
        _field(row, "host", str),
        _field(row, "port", int),
        row.get("tcp_port"),
        row.get("region", ""),
        row.get("server_name", ""),
    )


def _field(stored: Mapping[str, Any], name: str, kind: type) -> Any:
    found = stored.get(name)
    _check(type(found) is kind, f"a list of edges lacks {name}, or it is of the wrong kind")
    return found


def _is_host(text: object) -> bool:
    if not isinstance(text, str) or len(text) > _MAX_HOST_CHARS:
        return False
    try:
        return str(ip_address(text)) == text and "%" not in text
    except ValueError:
        return _matches(_NAME, text)


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 < value <= most


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise EdgeListError(why)
