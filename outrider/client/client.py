"""Connecting to an edge, and starting chats."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from outrider.access.client_key import configured_key, found_key
from outrider.client.address import EdgeAddress
from outrider.client.chat import Chat
from outrider.client.events import EdgeInfo, TextIds
from outrider.client.known_edges import KnownEdges
from outrider.client.link import Link, open_link
from outrider.client.list_reader import ListReader
from outrider.client.messages import read_messages
from outrider.client.protocol import DEFAULT_PORT
from outrider.client.question import answer
from outrider.client.recovery import ReconnectPolicy
from outrider.client.streams import Connection
from outrider.client.tickets import SessionTickets
from outrider.client.wire import (
    DESCRIBE,
    TYPED_TEXT_CHARS,
    ChatOptions,
    Credential,
    PriorityName,
    SpeculationName,
    read_description,
    read_text_ids,
    tokenize_frame,
    typed_frame,
)
from outrider.edge_list import read_key
from outrider.errors import ConfigError, OutriderError
from outrider.models.chat import Message
from outrider.models.template_variables import check_variables
from outrider.models.tools import check_tools, tool_text
from outrider.sampling.grammar import from_response_format
from outrider.sampling.params import SamplingParams

DEFAULT_RECONNECT: Final = ReconnectPolicy()


class Client:
    """A connection to an edge, made by `connect`. Any number of chats may run on it at once."""

    def __init__(self, link: Link, credential: Credential) -> None:
        self._link = link
        self._credential = credential

    @property
    def secret(self) -> bytes:
        """Identifies this client to its edges. Pass it to `connect` after a restart to continue the
        client's chats. Whoever has it can do so: keep it secret."""
        return self._credential.client_secret

    @property
    def way(self) -> str:
        """Over what the present connection goes: "QUIC", or "TCP" on networks that let no QUIC
        through. A lost connection may be replaced over the other."""
        return self._link.connection.way.value

    def chat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any] | str] = (),
        tool_choice: str = "",
        parallel_tool_calls: bool = True,
        sampling: SamplingParams | None = None,
        response_format: Mapping[str, Any] | None = None,
        model: str = "",
        provisional: bool = True,
        speculation: SpeculationName = "on",
        priority: PriorityName = "",
        deadline_ms: int = 0,
        thin: bool = False,
        idempotency_key: str = "",
        residency: tuple[str, ...] = (),
        prediction: str = "",
        template_variables: Mapping[str, Any] | None = None,
    ) -> Chat:
        """Start a chat, which is sent when entered: `async with client.chat(...) as chat`.

        `messages` are Message objects, or mappings with "role" and "content" as in OpenAI's API,
        tool calls included. `tools` are the tools that the model may call, each with name,
        description and parameters (a JSON schema), or as in OpenAI's API. `response_format` is
        OpenAI's, and sets the grammar of `sampling` (outrider.sampling.grammar).
        `template_variables` are for the model's chat template, for example
        {"enable_thinking": False}; one that it does not have is refused. The other arguments are
        described in ChatOptions.

        Raises InvalidSamplingError for an invalid `response_format`. Entering raises
        UnavailableError if the connection is lost, and InvalidRequestError for a request that
        cannot be sent; the edge's own refusals are raised while iterating.
        """
        options = ChatOptions(
            sampling=_with_format(sampling, response_format),
            model=model,
            provisional=provisional,
            speculation=speculation,
            priority=priority,
            deadline_ms=deadline_ms,
            thin=thin,
            idempotency_key=idempotency_key,
            residency=residency,
            prediction=prediction,
            tools=check_tools([tool_text(tool) for tool in tools]),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            template_variables=check_variables(template_variables or {}),
        )
        asked = read_messages(messages)
        return Chat(self._link, asked, options, self._credential)

    def resume(self, resume_token: str, *, provisional: bool = True) -> Chat:
        """Continue a chat that was started before: by this client, by one with its `secret`, or in
        its trust group. The events are those of the whole reply from its beginning. `resume_token`
        is `Chat.resume_token`. Enter it like `chat`; iterating raises UnknownChatError if the edge
        does not hold the chat, or no longer holds it."""
        options = ChatOptions(provisional=provisional)
        return Chat(self._link, (), options, self._credential, resume_token)

    def typing(
        self,
        before: Iterable[Message | Mapping[str, Any]] = (),
        *,
        model: str = "",
        tools: Iterable[Mapping[str, Any] | str] = (),
        ahead: bool = False,
        tool_choice: str = "",
        parallel_tool_calls: bool = True,
        sampling: SamplingParams | None = None,
        response_format: Mapping[str, Any] | None = None,
        residency: tuple[str, ...] = (),
        template_variables: Mapping[str, Any] | None = None,
    ) -> Typing:
        """Start computing a prompt while the user types it, after the messages `before`, for a chat
        with `model` and `tools`. Call `update` with the whole text whenever it changes; the region
        computes the part that is unlikely to change. The next chat of this client uses that work
        and ends the typing.

        With `ahead`, to which the user has to have agreed, the region also begins the reply when
        typing pauses. Its tokens wait at the edge, and nobody is shown them unless the next chat
        asks for exactly this: the same messages, and the same options as here."""
        messages = read_messages(before)
        texts = check_tools([tool_text(tool) for tool in tools])
        options = ChatOptions(
            sampling=_with_format(sampling, response_format),
            residency=residency,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            template_variables=check_variables(template_variables or {}),
        )
        wanted = options if ahead else None
        return Typing(self._link, messages, self._credential, model, texts, wanted)

    async def migrate(self) -> None:
        """Move the connection to another socket of this machine, as after a change of network.
        Chats continue undisturbed (QUIC migration, RFC 9000, section 9). It happens by itself when
        the present socket fails. Raises UnavailableError if the edge cannot be reached now."""
        await self._link.migrate()

    async def describe(self) -> EdgeInfo:
        """Ask the edge for its name, region and models. Raises UnavailableError, or the edge's own
        error."""
        return await answer(await self._link.usable(), DESCRIBE, read_description)

    async def tokenize(self, text: str, *, model: str = "") -> TextIds:
        """Turn a text of up to about a megabyte into token ids, as the edge's `/tokenize` does:
        names of control tokens in it become these tokens, and a tokenizer service encodes long
        texts if the edge has one. It needs the scope `tokenize`. Raises UnavailableError,
        PromptTooLongError, InvalidRequestError, or the edge's own error."""
        frame = tokenize_frame(text, model, self._credential)
        return await answer(await self._link.usable(), frame, read_text_ids)


@asynccontextmanager
async def connect(
    host: str,
    port: int | None = None,
    *,
    others: Sequence[str] = (),
    ca: Path | str | None = None,
    insecure: bool = False,
    server_name: str | None = None,
    timeout_s: float = 5.0,
    reconnect: ReconnectPolicy | None = DEFAULT_RECONNECT,
    tickets: SessionTickets | None = None,
    early_data: bool = False,
    key: str | None = None,
    user: str = "",
    client_secret: bytes = b"",
    edge_list_keys: Sequence[str] = (),
    edge_list_file: Path | str | None = None,
) -> AsyncIterator[Client]:
    """Connect to the edge at `host`: a name, an address, or `quic://host:port`.

    Where QUIC is not answered within 250 ms, TCP is tried beside it (HTTP/2 over TLS), and the one
    that is complete first is used. The TCP port is the same number, or that of
    `quic://host:port?tcp=443`.

    - `others`: edges to use when the first cannot be reached, each written like `host`. They need
      not know the chats.
    - `ca`: PEM file to trust, where `~` is the home directory. `insecure`: trust any certificate.
      `server_name`: the name in the certificate, if it is not the host. All three hold for
      `others` too.
    - `reconnect`: how long a lost connection is replaced; chats then continue where they were.
      None: they fail.
    - `tickets`: TLS session tickets, which may outlive this client. With a ticket of an earlier
      connection, `early_data` sends the first question without waiting for the handshake (QUIC
      0-RTT); if no edge answers, the chats report it.
    - `key`: an API key or a token. None: that of OUTRIDER_API_KEY, else that of
      ~/.config/outrider/config.toml, else the development key of `outrider up` if its edge is the
      only one that may be used; "": no key. It is sent only to an edge whose certificate is
      trusted.
    - `user`: which of the key's users the chats are for.
    - `client_secret`: `Client.secret` of an earlier client, 16 to 64 bytes, to be the same client
      again; by default a random one.
    - `edge_list_keys`: public keys of which one has to have signed the mesh's list of edges
      (`outrider edges key` prints one). With them, the client asks its edge for the list, and uses
      the edges of a list that it has verified after the ones named here: the nearest first, by
      the time of a handshake with each. Certificates are verified as those of `others` are.
      `edge_list_file`: keeps the list, so that a later client finds its edges although none of
      those named here answers.

    Leaving the context ends every chat without waiting. Raises UnavailableError, which says what to
    check, and ConfigError for an invalid address.
    """
    if key and insecure:
        raise ConfigError(
            "a key must not be sent to an edge that is not verified; name the certificate to "
            "trust as `ca`"
        )
    first = _address(host, port, ca, insecure, server_name)
    if key is None and not insecure:
        # The key of a mesh on this machine is for its own edge: not where there are others.
        is_alone = not (others or edge_list_keys)
        find = partial(found_key, first.host, first.port) if is_alone else configured_key
        key = await asyncio.to_thread(find, os.environ)
    if user and not key:
        raise ConfigError("a user needs the key of its tenant; give the key too")
    if client_secret and not 16 <= len(client_secret) <= 64:
        raise ConfigError(f"client_secret has 16 to 64 bytes, not {len(client_secret)}")
    credential = Credential(key or "", user, client_secret or secrets.token_bytes(32))
    named = (first, *(_address(other, None, ca, insecure, server_name) for other in others))
    edges, lists = _edges(named, edge_list_keys, edge_list_file)
    link = await open_link(
        edges,
        timeout_s,
        SessionTickets() if tickets is None else tickets,
        reconnect,
        early=early_data,
        lists=lists,
    )
    try:
        yield Client(link, credential)
    finally:
        link.close()


def _edges(
    named: Sequence[EdgeAddress], keys: Sequence[str], file: Path | str | None
) -> tuple[KnownEdges, ListReader | None]:
    if isinstance(keys, str):
        raise ConfigError("edge_list_keys is a list of keys; write edge_list_keys=[KEY]")
    edges = KnownEdges(named, [read_key(key) for key in keys])
    if keys:
        return edges, ListReader(edges, None if file is None else Path(file).expanduser())
    if file is not None:
        raise ConfigError("edge_list_file needs the keys that lists are signed with; name them")
    return edges, None


def _with_format(
    sampling: SamplingParams | None, response_format: Mapping[str, Any] | None
) -> SamplingParams:
    sampling = sampling or SamplingParams()
    if response_format is None:
        return sampling
    return replace(sampling, grammar=from_response_format(response_format))


class Typing:
    """A head start for the next chat, made by `Client.typing`. It is optional: without a connection
    it sends nothing, and the chat works the same."""

    def __init__(
        self,
        link: Link,
        before: tuple[Message, ...],
        credential: Credential,
        model: str,
        tools: tuple[str, ...] = (),
        ahead: ChatOptions | None = None,
    ) -> None:
        """`ahead`: options of the chat whose reply is to be begun; None: it is not."""
        self._link = link
        self._ahead = ahead
        self._tools = tools
        self._model = model
        self._before = before
        self._credential = credential
        self._connection: Connection | None = None
        self._stream_id = -1

    def update(self, text: str) -> None:
        """Report the whole text as it is now. Raises InvalidRequestError for invalid text."""
        connection = self._link.connection
        if connection.lost is not None or len(text) > TYPED_TEXT_CHARS:
            return
        if connection is self._connection:
            connection.send(self._stream_id, typed_frame((), text))
        else:
            frame = typed_frame(
                *(self._before, text, self._credential, self._model, self._tools, self._ahead)
            )
            self._stream_id = connection.open(self, frame)
            self._connection = connection

    def close(self) -> None:
        """Drop the head start because the user gave up the text. A chat needs no such call."""
        if self._connection is not None:
            self._connection.drop(self._stream_id)

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection: the edge answers nothing."""

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off: so is the head start."""


def _address(
    host: str, port: int | None, ca: Path | str | None, insecure: bool, server_name: str | None
) -> EdgeAddress:
    http_port = None
    if "://" in host:
        try:
            url = urlsplit(host)
            parts = (url.scheme, url.hostname, url.port)
            query = dict(parse_qsl(url.query, strict_parsing=True) if url.query else ())
            http_port = int(query.pop("tcp")) if "tcp" in query else None
        except ValueError as error:
            raise ConfigError(f"{host!r} is no address: {error}") from error
        scheme, name, url_port = parts
        if scheme != "quic" or not name or query:
            raise ConfigError(
                f"{host!r} is no address of an edge; write quic://host:port, or "
                "quic://host:port?tcp=443 if its TCP port is another"
            )
        host, port = name, url_port if port is None else port
    port = DEFAULT_PORT if port is None else port
    for number in (port, port if http_port is None else http_port):
        if not 0 < number < 1 << 16:
            raise ConfigError(f"port {number} of {host} is none; an edge has one of 1 to 65535")
    if ca is not None and not isinstance(ca, str | Path):
        raise ConfigError(f"ca is the path of a PEM file, not {ca!r:.50}")
    trusted = None if ca is None else Path(ca).expanduser()
    return EdgeAddress(host, port, trusted, insecure, server_name, http_port)
