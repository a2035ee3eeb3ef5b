"""State shared by all HTTP requests of one edge, whichever listener they come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from outrider.errors import DrainingError, OutriderError
from services.edge.chat.context import EdgeContext
from services.edge.http.allowed_hosts import AllowedHosts
from services.edge.http.config import HttpConfig
from services.edge.http.origins import AllowedOrigins
from services.edge.http.proxies import TrustedProxies
from services.edge.http.stream import RunningReply
from services.edge.http.system_lines import LeftOutLines
from services.edge.http.typed_text_table import TypedTexts
from services.edge.http.webtransport import SessionOffer
from services.edge.limits.bodies import BodyMemory
from services.edge.limits.listener import ListenerQuotas
from services.edge.quic.streams import EdgeStream
from services.edge.upstream.mesh_watch import MeshWatch


@dataclass(frozen=True)
class HttpFrontend:
    """Made by the edge, handed to its ASGI application."""

    context: EdgeContext
    limits: ListenerQuotas
    """The quotas of the QUIC listener: a client that uses both listeners has the quotas of one."""
    config: HttpConfig
    started_s: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""
    bodies: BodyMemory = field(default_factory=BodyMemory)
    replies: set[RunningReply] = field(default_factory=set)
    """Under way."""
    streams: set[EdgeStream] = field(default_factory=set)
    """Of the native protocol, under way over HTTP."""
    typed_texts: TypedTexts = field(default_factory=TypedTexts)
    """Messages that are being typed."""
    needs_key: bool = True
    """Whether requests without a key are refused, even if the edge otherwise serves them."""
    document: bytes = b"{}"
    """OpenAPI, in JSON."""
    page: bytes = b""
    """What this edge is, in HTML."""
    sessions: SessionOffer = field(default_factory=SessionOffer)
    """What pages are told of WebTransport; filled once the edge listens."""

    @property
    def serves_anyone(self) -> bool:
        """Whether clients without a key are served by the native protocol."""
        return self.context.identities.anonymous_models is not None

    @cached_property
    def proxies(self) -> TrustedProxies:
        """In front of this edge."""
        return TrustedProxies(self.config.trusted_proxies)

    @cached_property
    def origins(self) -> AllowedOrigins:
        """Of web pages that may use this edge."""
        return AllowedOrigins(self.config.allowed_origins)

    @cached_property
    def hosts(self) -> AllowedHosts:
        """Names by which clients may ask for this edge."""
        return AllowedHosts(self.config.allowed_hosts)

    @cached_property
    def left_out(self) -> LeftOutLines:
        """Lines of system messages that models are not shown."""
        return LeftOutLines(self.config.left_out_lines)

    @cached_property
    def mesh(self) -> MeshWatch:
        """What a router says of the mesh."""
        return MeshWatch(self.context.upstream, self.config.max_mesh_watchers)

    def check_draining(self) -> None:
        """Raises DrainingError if nothing begins any more."""
        if self.limits.is_draining:
            raise DrainingError("this edge is shutting down; send the request to another")

    def begin_chat(self, prefix: str, client: bytes, now: float) -> Callable[[], None]:
        """Count a chat; call the result at its end. Raises OverloadedError. See
        ListenerQuotas.hold_chat."""
        return self.limits.hold_chat(prefix, client, now)

    def fail_replies(self, error: OutriderError) -> None:
        """End all that are under way, and the streams of the native protocol."""
        for reply in list(self.replies):
            reply.fail(error)
        for stream in list(self.streams):
            stream.fail(error)
