"""Connecting to an edge, and starting chats."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from outrider.client.chat import Chat
from outrider.client.connection import ClientConnection, EdgeAddress, dial
from outrider.client.protocol import DEFAULT_PORT
from outrider.client.wire import ChatOptions, Priority, Speculation
from outrider.errors import ConfigError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams


class Client:
    """A connection to an edge; `connect` makes one. Any number of chats may run at once."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def chat(
        self,
        messages: Iterable[Message | Mapping[str, str]],
        *,
        sampling: SamplingParams | None = None,
        model: str = "",
        provisional: bool = True,
        speculation: Speculation = "on",
        priority: Priority = "medium",
        deadline_ms: int = 0,
        thin: bool = False,
        idempotency_key: str = "",
        residency: tuple[str, ...] = (),
    ) -> Chat:
        """A chat, sent when it is entered: `async with client.chat(...) as chat`.

        `messages` are Message objects or mappings with "role" and "content"; for the rest see
        ChatOptions. Entering raises UnavailableError when the connection is lost, and
        InvalidRequestError for what cannot be sent; the edge's refusals come while iterating.
        """
        options = ChatOptions(
            sampling=sampling or SamplingParams(),
            model=model,
            provisional=provisional,
            speculation=speculation,
            priority=priority,
            deadline_ms=deadline_ms,
            thin=thin,
            idempotency_key=idempotency_key,
            residency=residency,
        )
        return Chat(self._connection, tuple(_message(message) for message in messages), options)


@asynccontextmanager
async def connect(
    host: str,
    port: int | None = None,
    *,
    ca: Path | None = None,
    insecure: bool = False,
    server_name: str | None = None,
    timeout_s: float = 5.0,
) -> AsyncIterator[Client]:
    """A client of the edge at `host` (a name, an address, or `quic://host:port`).

    `ca` is the PEM file to trust, `insecure` trusts any certificate, `server_name` is the name in
    the certificate if it is not the host. Raises UnavailableError saying what to check, ConfigError
    for an address that is none. Leaving the context ends every chat and does not wait.
    """
    connection = await dial(_address(host, port, ca, insecure, server_name), timeout_s)
    try:
        yield Client(connection)
    finally:
        connection.shut()


def _address(
    host: str, port: int | None, ca: Path | None, insecure: bool, server_name: str | None
) -> EdgeAddress:
    if "://" in host:
        try:
            url = urlsplit(host)
            parts = (url.scheme, url.hostname, url.port)
        except ValueError as error:
            raise ConfigError(f"{host!r} is no address: {error}") from error
        scheme, name, url_port = parts
        if scheme != "quic" or not name:
            raise ConfigError(f"{host!r} is no address of an edge; write quic://host:port")
        host, port = name, url_port if port is None else port
    port = DEFAULT_PORT if port is None else port
    if not 0 < port < 1 << 16:
        raise ConfigError(f"port {port} of {host} is none; an edge has one of 1 to 65535")
    return EdgeAddress(host, port, ca, insecure, server_name)


def _message(message: Message | Mapping[str, str]) -> Message:
    if isinstance(message, Message):
        return message
    try:
        return Message(message["role"], message["content"])
    except KeyError as error:
        raise ConfigError(f"a message needs role and content; {error} is missing") from error
