"""Settings of an edge's HTTP listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt, between
from outrider.errors import ConfigError
from outrider.host_names import is_loopback
from services.edge.http.allowed_hosts import AllowedHosts
from services.edge.http.origins import AllowedOrigins
from services.edge.http.proxies import TrustedProxies
from services.edge.http.system_lines import BILLING_LINE, LeftOutLines

_TLS: Final = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How HTTP over TCP is served: table `[edge.http]`. Raises ConfigError for values that cannot
    work."""

    host: str = "127.0.0.1"
    """Address of the listener."""
    port: Annotated[int | None, between(0, 65535)] = None
    """TCP port; 0: any free one; none: no HTTP over TCP."""
    tls: str = "auto"
    """Whether connections are encrypted, with the edge's certificate: "on", "off" (behind a proxy
    that encrypts, or within a trusted network), or "auto", which is off only on loopback
    addresses."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies in front of this edge. Requests on their connections count
    for the address that X-Forwarded-For names, and their connections count for no address."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that browsers let use this edge, such as `https://chat.example`; or `*`
    alone, for all pages."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may ask for this edge, such as `chat.example`, besides addresses and
    localhost; or `*` alone, for any. None: any where clients need a key, or the connection is
    encrypted and not to a loopback address."""
    max_connections: PositiveInt = 1000
    """Most open connections; those of one address count together with its QUIC connections towards
    `quic.max_connections_per_address`."""
    max_waiting_connections: NonNegativeInt = 4096
    """Connections beyond these limits that wait, unread, for two minutes at most until others
    close, half of them from one address; further ones are refused. 0: none waits."""
    max_streams_per_connection: PositiveInt = 100
    """Requests under way on one HTTP/2 connection."""
    max_requests_per_connection: PositiveInt = 10_000
    """After so many a connection is closed, and its client opens another one."""
    max_control_frames_per_s: PositiveFloat = 100.0
    """Frames of one HTTP/2 connection that carry no data (PING, SETTINGS, PRIORITY, CONTINUATION,
    DATA of less than 64 bytes beyond one for each DATA frame sent, and the like), on average, 10 s
    worth at once. WINDOW_UPDATE frames count beyond four
    for each DATA frame sent. A connection that exceeds it is closed."""
    max_resets_per_s: PositiveFloat = 20.0
    """Requests that are cancelled on one HTTP/2 connection, on average, 10 s worth at once. A
    connection that exceeds it is closed; raise it behind a proxy that speaks HTTP/2 to the edge."""
    max_body_bytes: PositiveInt = 2 << 20
    """Largest body of a request."""
    max_header_bytes: PositiveInt = 16 << 10
    """Largest head of a request: its line and its headers."""
    body_timeout_s: PositiveFloat = 10.0
    """How long a body may take to arrive."""
    idle_timeout_s: PositiveFloat = 30.0
    """How long a connection may be open without a whole head of a request."""
    max_unsent_bytes: PositiveInt = 256 * 1024
    """A client that leaves more of a reply unread loses it."""
    send_timeout_s: PositiveFloat = 30.0
    """A client that reads nothing at all of an answer for so long loses it: over HTTP/1.1 with its
    connection."""
    comment_s: PositiveFloat = 10.0
    """After this time without an event, a comment is sent on a stream, for proxies that close
    silent ones. Until then a failure is answered with a status of its own."""
    default_max_tokens: NonNegativeInt = 2048
    """Most tokens of a reply to a chat completion or a Responses request that names no limit. 0:
    what fits the model's context. Edges that serve the same clients have the same one, or a reply
    that moves between them may end at another length."""
    max_choices: PositiveInt = 8
    """Most choices of one request: `n`, times its prompts."""
    left_out_lines: tuple[str, ...] = (BILLING_LINE,)
    """Beginnings of lines that system messages lose before the model reads them. The default is a
    line of Claude Code's that is for a provider's servers and differs in every request, so that no
    cached prompt would be found again. []: prompts are passed on as they are."""
    return_metrics: bool = False
    """Whether replies have `metrics` where the request's own `return_metrics` does not say."""
    chat_page: bool = True
    """Whether `/` and `/ui` are the chat page; otherwise `/` is what `/docs` is anyway.
    The page is public and holds nothing of chats, which need a key as everywhere."""

    max_mesh_watchers: PositiveInt = 16
    """Most pages at once that watch the mesh (`/ui/mesh`); one tenant has at most half of them."""

    def __post_init__(self) -> None:
        if self.tls not in _TLS:
            raise ConfigError(f"http.tls is {', '.join(_TLS)}, not {self.tls!r}")
        TrustedProxies(self.trusted_proxies)
        AllowedOrigins(self.allowed_origins)
        AllowedHosts(self.allowed_hosts)
        LeftOutLines(self.left_out_lines)

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are TLS."""
        if self.tls == "auto":
            return not is_loopback(self.host)
        return self.tls == "on"
