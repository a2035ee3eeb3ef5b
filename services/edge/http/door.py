"""What all HTTP requests of one edge share, whichever listener they come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from outrider.errors import DrainingError, OutriderError
from services.edge.chat.context import EdgeContext
from services.edge.http.config import HttpConfig
from services.edge.http.proxies import TrustedProxies
from services.edge.http.stream import RunningReply
from services.edge.limits.listener import ListenerQuotas


@dataclass(frozen=True)
class HttpDoor:
    """Made by the edge, handed to its ASGI application."""

    context: EdgeContext
    limits: ListenerQuotas
    """The same as of the QUIC listener: who comes through both doors has the quotas of one."""
    config: HttpConfig
    started_s: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""
    replies: set[RunningReply] = field(default_factory=set)
    """Under way."""
    needs_key: bool = True
    """Whether nobody is served without a key, whoever else the edge serves so."""
    document: bytes = b"{}"
    """OpenAPI, in JSON."""

    @cached_property
    def proxies(self) -> TrustedProxies:
        """In front of this edge."""
        return TrustedProxies(self.config.trusted_proxies)

    def check_draining(self) -> None:
        """Raises DrainingError if nothing begins any more."""
        if self.limits.is_draining:
            raise DrainingError("this edge is shutting down; send the request to another")

    def begin_chat(self, prefix: str, client: bytes, now: float) -> Callable[[], None]:
        """As ListenerQuotas.hold_chat. Raises OverloadedError."""
        return self.limits.hold_chat(prefix, client, now)

    def fail_replies(self, error: OutriderError) -> None:
        """End all that are under way."""
        for reply in list(self.replies):
            reply.fail(error)
