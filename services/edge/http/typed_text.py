"""POST /v1/chat/typing: what a page's user has typed so far of a message, so that the reply is
begun before it is sent. Nothing of the reply is answered here; the chat that follows names the
text by its id, and gets what was begun if it asks for exactly that.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import Raw

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
    UnknownChatError,
)
from outrider.models.chat import check_text
from services.edge.access.identity import Credential, Identity
from services.edge.chat.answer_ahead import may_be_answered_ahead
from services.edge.chat.typeahead import TypeaheadPrefill
from services.edge.http import openai_chat
from services.edge.http.api import ApiRequest
from services.edge.http.bodies import read
from services.edge.http.exchange import Exchange
from services.edge.http.openai_errors import refused
from services.edge.http.typed_text_table import KEPT_S, TextBeingTyped, typist_of
from services.edge.limits.quotas import Rate, too_much
from services.edge.session.events import ChatRequest, ClientGone
from services.edge.wire.client import TypedText

_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_SEED_BITS: Final = 53
"""JavaScript reads larger numbers inexactly."""
_STAND_IN: Final = Raw(b'{"role":"user","content":"."}')
"""For the message that is being typed: no request is without one."""
_SLOW_S: Final = 1.0
_NO_CREDENTIAL: Final = Credential()
"""Callers are identified by their request's headers."""


class TypingRequest(msgspec.Struct, kw_only=True):
    """Tells what a message is now that its user types. Its user has agreed to that."""

    id: str
    """16 to 64 of A-Z a-z 0-9 _ and -, random, another one for each message."""
    sequence: int = 0
    """Rises with each request of an id: one that is overtaken by a later one is ignored."""
    text: str
    """All of the message as it is now; empty: the user gave it up."""
    request: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))
    """The body that will be sent to /v1/chat/completions, without this message. With the first
    request of an id, and again where the edge does not know the id."""


class TypingAnswer(msgspec.Struct, kw_only=True):
    """The text was taken."""

    id: str
    seed: int
    """The seed of the reply, unless the chat names another."""
    expires_in_s: int = KEPT_S


class _Typist:
    """The stream of a TypeaheadPrefill, which has none."""

    def __init__(
        self, address: str, secret: bytes, spend: Callable[[Rate, int, bytes], bool]
    ) -> None:
        self.address = address
        self.connection_secret = secret
        self.spend = spend

    def end(self) -> None:
        """Nobody reads it."""


_decode: Final = msgspec.json.Decoder(TypingRequest).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_listed: Final = msgspec.json.Decoder(list[Raw]).decode


async def serve_typing(exchange: Exchange) -> None:
    """Take what one message is now. Raises OutriderError."""
    exchange.frontend.check_draining()
    data = await exchange.body()
    asked = read(_decode, data)
    exchange.release()
    identity = exchange.identity
    assert identity is not None
    _check(asked)
    spend = _spender(exchange)
    if not spend(Rate.TYPED_BYTES, len(data), identity.client):
        raise too_much(Rate.TYPED_BYTES, _SLOW_S)
    texts, typist = exchange.frontend.typed_texts, typist_of(identity)
    found = texts.find(typist, asked.id)
    if found is None:
        found = _begun(exchange, asked, spend)
        texts.add(typist, asked.id, found)
    elif asked.sequence > found.sequence:
        found.sequence = asked.sequence
        found.prefill.changed(TypedText((), asked.text, _NO_CREDENTIAL))
        texts.heard_of(typist, asked.id)
    answer = msgspec.json.encode(TypingAnswer(id=asked.id, seed=found.seed))
    await exchange.answer(200, answer)


def _check(asked: TypingRequest) -> None:
    if not _ID.fullmatch(asked.id):
        raise refused("id", "id is 16 to 64 of A-Z a-z 0-9 _ and -; make them at random")
    check_text(asked.text)


def _begun(
    exchange: Exchange, asked: TypingRequest, spend: Callable[[Rate, int, bytes], bool]
) -> TextBeingTyped:
    """A text of which this is the first that is heard. Raises OutriderError."""
    if bytes(asked.request) == b"null":
        raise UnknownChatError(
            "this edge knows no message of that id that is being typed; send `request`, too"
        )
    exchange.frontend.typed_texts.check_room(exchange.address)
    chat, user = _planned(exchange, asked)
    identity = exchange.admit(user) if user else exchange.identity
    assert identity is not None
    prefill = TypeaheadPrefill(
        _Typist(exchange.address, exchange.connection_secret, spend), exchange.frontend.context
    )
    _check_allowed(chat, identity, exchange)
    prefill.admit(identity, chat.model)
    typed = TypedText(
        chat.messages[:-1],
        asked.text,
        _NO_CREDENTIAL,
        tools=chat.tools,
        request=replace(chat, messages=()),
    )
    try:
        prefill.changed(typed)
    except OutriderError:
        prefill.feed(ClientGone())
        raise
    return TextBeingTyped(prefill, chat.sampling.seed, asked.sequence, exchange.address)


def _check_allowed(chat: ChatRequest, identity: Identity, exchange: Exchange) -> None:
    """Raises PermissionDeniedError, InvalidRequestError."""
    context = exchange.frontend.context
    if not (context.ahead.max_tokens and identity.group):
        raise PermissionDeniedError(
            "this edge begins no replies before their messages are sent; send them as they are"
        )
    if not may_be_answered_ahead(chat, identity, context):
        raise InvalidRequestError(
            "replies in lossy mode and with log probabilities are not begun before their messages "
            "are sent; send them as they are"
        )


def _planned(exchange: Exchange, asked: TypingRequest) -> tuple[ChatRequest, str]:
    """The chat that will be sent, with a stand-in for the message that is being typed, and its end
    user. Raises InvalidRequestError."""
    fields: dict[str, Any] = dict(read(_members, bytes(asked.request)))
    for name in ("stream", "stream_options", "typing_id"):
        fields.pop(name, None)
    fields["messages"] = [*read(_listed, bytes(fields.get("messages", b"[]"))), _STAND_IN]
    config = exchange.frontend.config
    planned = openai_chat.plan(
        ApiRequest(
            body=msgspec.json.encode(fields),
            now_s=int(time.time()),
            random_seed=secrets.randbits(_SEED_BITS),
            max_choices=1,
            default_max_tokens=config.default_max_tokens,
        )
    )
    (chat,) = planned.chats
    left_out = exchange.frontend.left_out
    return replace(chat, messages=left_out.without(chat.messages)), planned.user


def _spender(exchange: Exchange) -> Callable[[Rate, int, bytes], bool]:
    """Charges the quotas of the caller's address prefix and of a client."""
    frontend, address = exchange.frontend, exchange.address

    def spend(rate: Rate, amount: int, client: bytes) -> bool:
        try:
            now = asyncio.get_running_loop().time()
            frontend.limits.spend(address, rate, amount, client, now)
        except OverloadedError:
            frontend.context.telemetry.refused(rate.value)
            return False
        return True

    return spend
