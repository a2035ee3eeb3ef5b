"""Connecting to an edge, and starting chats."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from outrider.access.client_key import configured_key, found_key
from outrider.client.chat import Chat
from outrider.client.connection import ClientConnection
from outrider.client.events import EdgeInfo, TextIds
from outrider.client.link import EdgeAddress, Link, open_link
from outrider.client.messages import read_messages
from outrider.client.protocol import DEFAULT_PORT
from outrider.client.recovery import ReconnectPolicy
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
from outrider.codec.frames import FrameDecoder
from outrider.errors import ConfigError, OutriderError, UnavailableError
from outrider.models.chat import Message
from outrider.models.tools import check_tools, tool_text
from outrider.sampling.grammar import from_response_format
from outrider.sampling.params import SamplingParams

T = TypeVar("T")
DEFAULT_RECONNECT: Final = ReconnectPolicy()


class Client:
    """A way to an edge; `connect` makes one. Any number of chats may run at once."""

    def __init__(self, link: Link, credential: Credential) -> None:
        self._link = link
        self._credential = credential

    @property
    def secret(self) -> bytes:
        """Names this client to its edges: `connect` with it after a restart, to go on with its
        chats. Whoever has it may do so."""
        return self._credential.client_secret

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
    ) -> Chat:
        """A chat, sent when it is entered: `async with client.chat(...) as chat`.

        `messages` are Message objects or mappings with "role" and "content", of OpenAI's shape
        where they have tool calls. `tools` are what the model may call, each with name, description
        and parameters (a JSON schema), or in OpenAI's shape. `response_format` is OpenAI's, and
        sets the grammar of `sampling` (outrider.sampling.grammar); for the rest see ChatOptions.
        Raises InvalidSamplingError for a format that is none. Entering raises UnavailableError when
        the connection is lost, and InvalidRequestError for what cannot be sent; the edge's refusals
        come while iterating.
        """
        sampling = sampling or SamplingParams()
        if response_format is not None:
            sampling = replace(sampling, grammar=from_response_format(response_format))
        options = ChatOptions(
            sampling=sampling,
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
        )
        asked = read_messages(messages)
        return Chat(self._link, asked, options, self._credential)

    def resume(self, resume_token: str, *, provisional: bool = True) -> Chat:
        """A chat that was begun before, by this client, one with its `secret`, or one of its trust
        group: its whole reply, and then what is still to come. `resume_token` is that of the Chat.
        Entered like `chat`; iterating raises UnknownChatError when the edge does not hold the chat,
        or not any more."""
        options = ChatOptions(provisional=provisional)
        return Chat(self._link, (), options, self._credential, resume_token)

    def typing(
        self,
        before: Iterable[Message | Mapping[str, Any]] = (),
        *,
        model: str = "",
        tools: Iterable[Mapping[str, Any] | str] = (),
    ) -> Typing:
        """A prompt that is being typed, after the messages `before` it, for a chat with `model` and
        `tools`: tell it all of the text whenever it changes, and the region computes ahead what
        will stay. The chat sent then, on this client, finds that done; it ends the typing."""
        messages = read_messages(before)
        texts = check_tools([tool_text(tool) for tool in tools])
        return Typing(self._link, messages, self._credential, model, texts)

    async def migrate(self) -> None:
        """Go on from another socket of this machine, as on another network: chats do not notice
        (QUIC migration, RFC 9000, section 9). It is done unasked when the present one fails. Raises
        UnavailableError when there is no way to the edge at the moment."""
        await self._link.migrate()

    async def describe(self) -> EdgeInfo:
        """What the edge is. Raises UnavailableError, and what the edge answers."""
        return await self._ask(DESCRIBE, read_description)

    async def tokenize(self, text: str, *, model: str = "") -> TextIds:
        """The token ids of a text of up to about a megabyte, as the edge's `/tokenize` has them:
        texts of control tokens in it are these tokens, and a long text is made ids by a tokenizer
        service where the edge has one. Needs the scope `tokenize`. Raises UnavailableError,
        PromptTooLongError, InvalidRequestError, and what the edge answers."""
        return await self._ask(tokenize_frame(text, model, self._credential), read_text_ids)

    async def _ask(self, frame: bytes, read: Callable[[bytes], T]) -> T:
        question = _Question(read)
        connection = await self._link.usable()
        stream_id = connection.open(question, frame)
        try:
            return await question.answer
        finally:
            connection.drop(stream_id)


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
) -> AsyncIterator[Client]:
    """A client of the edge at `host` (a name, an address, or `quic://host:port`).

    `others` are edges to turn to when that one cannot be reached, each `quic://host:port`; none of
    them has to know of the chats. `ca` is the PEM file to trust (`~` is the home directory),
    `insecure` trusts any certificate, `server_name` is the name in the certificate if it is not the
    host; the same for all. Raises UnavailableError saying what to check, ConfigError for an address
    that is none. Leaving the context ends every chat and does not wait.

    A connection that is lost is replaced while `reconnect` allows it, and chats go on where they
    were; None: they fail. `tickets` outlive the client if they are given: with one of an earlier
    connection `early_data` does not wait for the edge, what is sent at once goes in QUIC 0-RTT, and
    that nobody answers shows in the chats.

    `key` is an API key or a token, `user` the one of its users for whom the chats are. A client
    shares nothing with others but for these; it has a random `client_secret` of its own, and may be
    given that of an earlier one, 16 to 64 bytes, to be the same client again. A key goes to no edge
    that is not trusted by its certificate. `key` None: that of OUTRIDER_API_KEY, else that of
    ~/.config/outrider/config.toml, else that of the mesh of `outrider up` on this machine where it
    is the only edge; "": none.
    """
    if key and insecure:
        raise ConfigError(
            "a key must not be sent to an edge that is not verified; name the certificate to "
            "trust as `ca`"
        )
    first = _address(host, port, ca, insecure, server_name)
    if key is None and not insecure:
        # The key of a mesh on this machine is for its own edge: not where there are others.
        find = partial(found_key, first.host, first.port) if not others else configured_key
        key = await asyncio.to_thread(find, os.environ)
    if user and not key:
        raise ConfigError("a user needs the key of its tenant; give the key too")
    if client_secret and not 16 <= len(client_secret) <= 64:
        raise ConfigError(f"client_secret has 16 to 64 bytes, not {len(client_secret)}")
    credential = Credential(key or "", user, client_secret or secrets.token_bytes(32))
    link = await open_link(
        (first, *(_address(other, None, ca, insecure, server_name) for other in others)),
        timeout_s,
        SessionTickets() if tickets is None else tickets,
        reconnect,
        early=early_data,
    )
    try:
        yield Client(link, credential)
    finally:
        link.close()


class Typing:
    """A head start for the next chat, made by `Client.typing`. Nothing depends on it: without a
    connection nothing is sent."""

    def __init__(
        self,
        link: Link,
        before: tuple[Message, ...],
        credential: Credential,
        model: str,
        tools: tuple[str, ...] = (),
    ) -> None:
        self._link = link
        self._tools = tools
        self._model = model
        self._before = before
        self._credential = credential
        self._connection: ClientConnection | None = None
        self._stream_id = -1

    def update(self, text: str) -> None:
        """This is all of the text now. Raises InvalidRequestError for what is no text."""
        connection = self._link.connection
        if connection.lost is not None or len(text) > TYPED_TEXT_CHARS:
            return
        if connection is self._connection:
            connection.send(self._stream_id, typed_frame((), text))
        else:
            frame = typed_frame(self._before, text, self._credential, self._model, self._tools)
            self._stream_id = connection.open(self, frame)
            self._connection = connection

    def close(self) -> None:
        """The user gave it up; a chat does not need this."""
        if self._connection is not None:
            self._connection.drop(self._stream_id)

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection: the edge answers nothing."""

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off: so is the head start."""


class _Question(Generic[T]):
    """A stream whose answer is one frame."""

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._decoder = FrameDecoder()
        self._read = read
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection."""
        try:
            for payload in self._decoder.feed(data):
                self._settle(self._read(payload))
            if end_stream and not self.answer.done():
                raise UnavailableError("the edge ended the stream without an answer; ask again")
        except OutriderError as error:
            self.failed(error)

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _settle(self, answer: T) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def _address(
    host: str, port: int | None, ca: Path | str | None, insecure: bool, server_name: str | None
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
    if ca is not None and not isinstance(ca, str | Path):
        raise ConfigError(f"ca is the path of a PEM file, not {ca!r:.50}")
    trusted = None if ca is None else Path(ca).expanduser()
    return EdgeAddress(host, port, trusted, insecure, server_name)
