"""The other process: chats in, ids out, one at a time, over one pipe.

A request is the scope, behind a byte that says whether there is one, the roles, with commas between
them, and every content in UTF-8 as it is: a long text is encoded once and never pickled. An answer
is the ids as native uint32, or empty for a chat that cannot be encoded: who asked finds out why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.choice import adopt
from outrider.tokenization.front.cache import CachePolicy
from outrider.tokenization.front.encoder import CachingEncoder, Scope

_NOBODYS: Final = b"\0"
_SOMEBODYS: Final = b"\1"


def serve(connection: Connection, vocabulary: Vocabulary, backend: str, cache_bytes: int) -> None:
    """Answer until the other side closes. `backend` passed the gate in the process that asks."""
    guarded = adopt(vocabulary, backend, "the parent process uses it")
    encoder = CachingEncoder(vocabulary, guarded, CachePolicy(max_bytes=cache_bytes))
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            connection.send_bytes(_answer(encoder, *_receive(connection)))


def ask(connection: Connection, messages: Sequence[Message], scope: Scope) -> bytes:
    """The answer to one chat; blocks. Raises EOFError or OSError when the process is gone."""
    connection.send_bytes(_NOBODYS if scope is None else _SOMEBODYS + scope)
    connection.send_bytes(",".join(message.role for message in messages).encode())
    for message in messages:
        connection.send_bytes(message.content.encode())
    return connection.recv_bytes()


def _receive(connection: Connection) -> tuple[list[Message], Scope]:
    scope = connection.recv_bytes()
    roles = connection.recv_bytes().decode().split(",")
    messages = [Message(role, connection.recv_bytes().decode()) for role in roles]
    return messages, None if scope == _NOBODYS else scope[1:]


def _answer(encoder: CachingEncoder, messages: list[Message], scope: Scope) -> bytes:
    try:
        return encoder.encode_chat(messages, scope).tobytes()
    except OutriderError:
        return b""
