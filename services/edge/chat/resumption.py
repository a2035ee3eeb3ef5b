"""The chats of an edge that clients may come back to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from outrider.access.api_keys import is_allowed
from outrider.errors import KeyReusedError, UnknownChatError, UnknownModelError
from outrider.workers.steering import PREFIX_BYTES
from services.edge.access.identity import Identity
from services.edge.chat.eviction import EvictionKey
from services.edge.chat.replay import ReplayCursor, ReplayLog
from services.edge.chat.resumption_table import (
    ChatKey,
    ChatTable,
    ResumableChat,
    ResumableInput,
    ResumeLimits,
)
from services.edge.chat.shared_replies import SharedReplies
from services.edge.chat.stream import ChatHandler, RequestStream
from services.edge.session.events import CancelAsked, ChatRequest, ClientGone
from services.edge.telemetry.edge import EdgeTelemetry

SECRET_BYTES: Final = 16
"""Random bytes of a resume token: too many to guess."""


class ServedChat(ChatHandler, Protocol):
    """A chat under way (services.edge.chat.chat)."""

    def join(
        self, stream: RequestStream, cursor: ReplayCursor, provisional: bool, run: int
    ) -> None:
        """Its client is back on this stream, as this run, with the part of the chat that `cursor`
        says."""
        ...


Entry: TypeAlias = ResumableChat[ServedChat]


class ResumableChats:
    """Keeps them in a table, and gives up those that no client comes back to."""

    def __init__(
        self,
        limits: ResumeLimits,
        telemetry: EdgeTelemetry,
        named: Callable[[int], bytes] | None = None,
        shared: SharedReplies | None = None,
    ) -> None:
        """`named` makes random bytes that name this process, on an edge with several
        (outrider.workers.steering): a client sends them to come back to it. `shared`: where other
        edges find the chats that their clients named by a key; None: nowhere."""
        self._loop = asyncio.get_running_loop()
        self._table = ChatTable[ServedChat](limits)
        self._telemetry = telemetry
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._is_closed = False
        self._named = named
        self._shared = shared
        self.window_s = limits.window_s

    def find(self, request: ChatRequest, identity: Identity) -> Entry | None:
        """The owner's chat that a request continues or repeats; its resume token is replaced. None:
        the request begins a new chat. Raises KeyReusedError if the key belongs to another request,
        or the request names another model; UnknownModelError for a model that this credential may
        not use; UnknownChatError for an unknown token without a request."""
        token, owner = request.resume.token, identity.owner
        entry = None
        if token:
            digest = request.digest if request.has_prompt else None
            entry = self._table.by_token(token, owner, digest)
        if entry is None and not request.has_prompt:
            raise UnknownChatError("this edge does not hold that chat; send the whole request")
        entry = entry or self._table.find(ChatKey(owner, request.request_id), request.digest)
        if entry is not None:
            check_model(request, entry.model, identity.models)
            self._table.renew(entry, token, self._new_token())
        return entry

    def cancel(self, request_id: str, identity: Identity) -> bool:
        """End the owner's chat with this request id, for good: nobody will come back to it. False:
        none is under way."""
        entry = self._table.by_key(ChatKey(identity.owner, request_id))
        if entry is None or entry.chat is None:
            return False
        entry.chat.feed(CancelAsked())
        return True

    def add(
        self, request: ChatRequest, identity: Identity, log: ReplayLog, chat: ServedChat
    ) -> Entry:
        """A chat begins; `find` found none for its request."""
        if request.resume.upto or request.resume.token:
            self._telemetry.resumed("rerun")
        key = ChatKey(identity.owner, request.request_id)
        if self._shared is not None and request.is_keyed:
            self._shared.begun(key, request.digest, log, chat)
        return self._table.add(
            key,
            EvictionKey(identity.origin, identity.share),
            request.digest,
            self._new_token(),
            log,
            chat,
            request.model,
        )

    def acknowledged(self, entry: Entry) -> None:
        """A client that came back has its new token."""
        self._table.acknowledge(entry)

    def joined(self, entry: Entry) -> None:
        """A client is back. It reads the running chat, or the rest of one that ended."""
        self._telemetry.resumed("replayed" if entry.chat is None else "attached")
        self._advance(entry, ResumableInput.JOINED)

    def lost(self, entry: Entry) -> None:
        """A client's connection was lost. Its chat continues for a while, if the limits allow
        it."""
        self._advance(entry, ResumableInput.FAILED if self._is_closed else ResumableInput.LOST)

    def grew(self, entry: Entry) -> None:
        """A chat committed something."""
        self._give_up(self._table.grew(entry))

    def ended(self, entry: Entry) -> None:
        """A chat is over. One that ended well is remembered; one cut off by its deadline may be
        sent again with a later one."""
        done = entry.log.done
        well = done is not None and done.finish_reason.is_whole
        self._advance(
            entry, ResumableInput.DONE if well and not self._is_closed else ResumableInput.FAILED
        )
        if self._shared is not None:
            self._shared.ended(entry.key)

    def close(self) -> None:
        """Nobody can come back any more."""
        self._is_closed = True
        self._give_up(self._table.close())

    def _new_token(self) -> str:
        if self._named is None:
            return secrets.token_hex(SECRET_BYTES)
        return self._named(PREFIX_BYTES).hex() + secrets.token_hex(SECRET_BYTES)

    def _advance(self, entry: Entry, event: ResumableInput) -> None:
        chat = entry.chat
        given_up = self._table.advance(entry, event, self._loop.time())
        if event is ResumableInput.FAILED and chat is not None:
            given_up = [*given_up, chat]  # a chat that has ended already ignores it
        self._give_up(given_up)

    def _give_up(self, chats: list[ServedChat]) -> None:
        for chat in chats:
            chat.feed(ClientGone())
        self._telemetry.detached(self._table.num_detached)
        self._arm()

    def _arm(self) -> None:
        at = self._table.next_expiry
        if self._timer is not None:
            if self._armed_at == at:
                return
            self._timer.cancel()
        # Not asked of the timer: one for a time that is past is none to uvloop, and does not know.
        self._armed_at = at
        self._timer = None if at is None else self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._give_up(self._table.expire(self._loop.time()))


def check_model(request: ChatRequest, model: str, allowed: tuple[str, ...]) -> None:
    """A request for a chat with `model` that was begun before. One that names no model is about the
    chat's own, whichever is the default by now. Raises UnknownModelError and KeyReusedError."""
    if not is_allowed(model, allowed):
        raise UnknownModelError(
            "this chat is with a model that this credential is not for; use another one, or begin "
            "another chat"
        )
    if request.model not in ("", model):
        raise KeyReusedError(
            f"this chat is with the model {model}; ask for that one, or take a new key for another "
            "chat"
        )
