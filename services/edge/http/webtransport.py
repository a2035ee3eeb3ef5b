"""What pages are told of WebTransport at `/ui/transport.json`, and which of them may open a
session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from outrider.client.protocol import HTTP_PATH, WEBTRANSPORT_PATH
from outrider.errors import OutriderError
from outrider.host_names import address_of, host_of
from services.edge.http3.messages import Refusal, Request
from services.edge.quic.certificate import PinnedCertificate

if TYPE_CHECKING:
    from services.edge.http.exchange import Exchange
    from services.edge.http.frontend import HttpFrontend
    from services.edge.quic.alpn import Connection

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(slots=True)
class SessionOffer:
    """What is known of an edge's WebTransport sessions once it listens."""

    quic_port: int = 0
    """0: there are no sessions."""
    http_port: int = 0
    scheme: str = "https"
    """Of HTTP over TCP: http or https."""
    certificates: tuple[PinnedCertificate, ...] = ()
    """By whose hashes a browser may take this edge; none: it needs an authority that it trusts."""

    def address(self, authority: str) -> str:
        """Where pages that asked for the edge by this `Host` reach its sessions, as an origin;
        empty: nowhere."""
        host = host_of(authority)
        return f"https://{_bracketed(host)}:{self.quic_port}" if host and self.quic_port else ""

    def is_own(self, origin: str, authority: str) -> bool:
        """Whether a page of this origin came from the edge itself, asked for by the same name."""
        host = _bracketed(host_of(authority))
        places = ((self.scheme, self.http_port), ("https", self.quic_port))
        return bool(host) and origin in {_origin(*place, host) for place in places if place[1]}


def _bracketed(host: str) -> str:
    address = address_of(host)
    return f"[{host}]" if address is not None and ":" in host else host


def _origin(scheme: str, port: int, host: str) -> str:
    return f"{scheme}://{host}" + ("" if _DEFAULT_PORTS[scheme] == port else f":{port}")


class CertificateHash(msgspec.Struct, kw_only=True):
    """An element of `serverCertificateHashes`."""

    algorithm: Literal["sha-256"] = "sha-256"
    value: str
    """In hexadecimal."""
    not_after: str
    """When the certificate expires, by RFC 3339."""


class WebTransportPlace(msgspec.Struct, kw_only=True):
    """How a page opens a session."""

    url: str
    certificate_hashes: list[CertificateHash]
    """Of the certificate in use first, then of its successor and its predecessor, as far as there
    are such; none: an authority has signed the certificate."""


class Transports(msgspec.Struct, kw_only=True):
    """How pages reach this edge with the native protocol."""

    webtransport: WebTransportPlace | None
    """Null: this edge has no sessions."""
    stream: str = HTTP_PATH
    """Path at which a stream of the native protocol is a request: the same frames, by fetch."""
    now: str
    """The edge's time by RFC 3339: a browser whose clock differs may refuse the certificate."""


async def serve_transports(exchange: Exchange) -> None:
    """Answer with how a page reaches this edge."""
    offer = exchange.frontend.sessions
    address = offer.address(exchange.headers.get("host", ""))
    place = None
    if address:
        hashes = [
            CertificateHash(value=it.sha256.hex(), not_after=_time(it.not_after))
            for it in offer.certificates
        ]
        place = WebTransportPlace(url=address + WEBTRANSPORT_PATH, certificate_hashes=hashes)
    told = Transports(webtransport=place, now=_time(datetime.now(UTC)))
    await exchange.answer(200, msgspec.json.encode(told))


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def session_refusal(
    frontend: HttpFrontend, request: Request, connection: Connection
) -> Refusal | None:
    """Why a request opens no session; None: it may. Who its client is, each stream's first frame
    says. A browser always names the page's origin; who names none is no browser."""
    if request.path != WEBTRANSPORT_PATH:
        return Refusal(404, f"sessions are opened at {WEBTRANSPORT_PATH}")
    fields = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    authority = fields["host"]
    try:
        frontend.hosts.check(
            [authority],
            server=str((connection.local or ("",))[0]),
            is_encrypted=True,
            needs_key=not frontend.serves_anyone,
        )
    except OutriderError as error:
        return Refusal(error.http_status, str(error))
    origin = fields.get("origin")
    if origin is None or frontend.origins.allow(origin):
        return None
    if frontend.sessions.is_own(origin, authority):
        return None
    return Refusal(
        403,
        "pages of this origin may not use this edge: have its operator add it to "
        "edge.http.allowed_origins",
    )
