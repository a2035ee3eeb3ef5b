"""Where requests arrive: a chat that is here already goes on, any other one begins."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

from outrider.errors import UnknownChatError
from outrider.session_types import FinishReason
from services.edge.identity import Identity
from services.edge.resumption.audience import ClientStream
from services.edge.resumption.held import Held, HeldChats, Input, Key, ResumeLimits
from services.edge.resumption.holders import Holder
from services.edge.resumption.journal import Journal, Listener
from services.edge.session.inputs import ChatRequest, ClientGone
from services.edge.session.inputs import Input as SessionInput
from services.edge.telemetry import EdgeTelemetry


class StreamOwner(Protocol):
    """Who a client's stream belongs to: a chat, as a rule."""

    @property
    def awaits_request(self) -> bool:
        """Whether the first frame has not come yet."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the chat is over."""
        ...

    def receive(self, payload: bytes) -> None:
        """A frame from the client."""
        ...

    def feed(self, item: SessionInput) -> None:
        """Something happened to it."""
        ...

    def client_lost(self) -> None:
        """The client's connection is no more."""
        ...


class ServedChat(StreamOwner, Protocol):
    """A chat (services.edge.chat)."""

    def join(self, stream: RequestStream, listener: Listener, provisional: bool) -> None:
        """Its client is back, on this stream, and has so much of it."""
        ...


class RequestStream(ClientStream, Protocol):
    """Where a request came from."""

    @property
    def address(self) -> str:
        """The address prefix of its client."""
        ...

    @property
    def connection_secret(self) -> bytes:
        """16 random bytes that all streams of its connection have, and nobody else."""
        ...

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """A chat of this client begins, and counts until what this returns is called. Raises
        OverloadedError."""
        ...

    def follow(self, owner: StreamOwner) -> None:
        """The stream belongs to another one from now on."""
        ...


HeldEntry = Held[ServedChat]


class Reception:
    """Knows every chat of the edge, and gives up those that nobody comes back to."""

    def __init__(self, limits: ResumeLimits, telemetry: EdgeTelemetry) -> None:
        self._loop = asyncio.get_running_loop()
        self._held = HeldChats[ServedChat](limits)
        self._telemetry = telemetry
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._is_closed = False
        self.window_s = limits.window_s

    def find(self, request: ChatRequest, owner: bytes) -> HeldEntry | None:
        """The owner's chat that a request goes on with or repeats, which has another resume token
        from now on; None if it is to begin. Raises KeyReusedError, and UnknownChatError for a token
        without a request that is not known."""
        token, held = request.resume.token, None
        if token:
            digest = request.digest if request.messages else None
            held = self._held.by_token(token, owner, digest)
        if held is None and not request.messages:
            raise UnknownChatError("this edge does not hold that chat; send the whole request")
        held = held or self._held.find(Key(owner, request.request_id), request.digest)
        if held is not None:
            self._held.renew(held, token, _new_token())
        return held

    def enter(
        self, request: ChatRequest, identity: Identity, journal: Journal, chat: ServedChat
    ) -> HeldEntry:
        """A chat begins; its key is free."""
        if request.resume.upto or request.resume.token:
            self._telemetry.resumed("rerun")
        key = Key(identity.owner, request.request_id)
        holder = Holder(identity.origin, identity.share)
        return self._held.enter(key, holder, request.digest, _new_token(), journal, chat)

    def acknowledged(self, held: HeldEntry) -> None:
        """A client that came back has its new token."""
        self._held.acknowledge(held)

    def joined(self, held: HeldEntry) -> None:
        """A client is back, and listens or has been told all of a chat that ended."""
        self._telemetry.resumed("replayed" if held.chat is None else "attached")
        self._advance(held, Input.JOINED)

    def lost(self, held: HeldEntry) -> None:
        """A client's connection is no more. Its chat goes on for a while, if there is room."""
        self._advance(held, Input.FAILED if self._is_closed else Input.LOST)

    def grew(self, held: HeldEntry) -> None:
        """A chat committed something."""
        self._give_up(self._held.grew(held))

    def ended(self, held: HeldEntry) -> None:
        """A chat is over. One that ended well is remembered; one cut off by its deadline may be
        sent again with a later one."""
        done = held.journal.done
        well = done is not None and done.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._advance(held, Input.DONE if well and not self._is_closed else Input.FAILED)

    def close(self) -> None:
        """Nobody can come back any more."""
        self._is_closed = True
        self._give_up(self._held.close())

    def _advance(self, held: HeldEntry, event: Input) -> None:
        chat = held.chat
        given_up = self._held.advance(held, event, self._loop.time())
        if event is Input.FAILED and chat is not None:
            given_up = [*given_up, chat]  # a chat that has ended already takes no notice
        self._give_up(given_up)

    def _give_up(self, chats: list[ServedChat]) -> None:
        for chat in chats:
            chat.feed(ClientGone())
        self._telemetry.detached(self._held.num_detached)
        self._arm()

    def _arm(self) -> None:
        at = self._held.next_expiry
        if self._timer is not None:
            if self._armed_at == at:
                return
            self._timer.cancel()
        # Not asked of the timer: one for a time that is past is none to uvloop, and does not know.
        self._armed_at = at
        self._timer = None if at is None else self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._give_up(self._held.expire(self._loop.time()))


def _new_token() -> str:
    return secrets.token_hex(16)
