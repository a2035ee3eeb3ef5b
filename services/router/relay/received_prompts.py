"""Prompts of which an edge sends only the part that this router lacks
(outrider.codec.prompt_memory).

An open that names the beginning of its prompt is completed here, so that all other code sees whole
prompts. If the name is not known, the edge is asked for the whole prompt and the session waits.

No I/O, no clock.
"""

from __future__ import annotations

import zlib
from typing import Final

from google.protobuf.message import DecodeError

from outrider.codec.prompt_memory import PromptMemory, prompt_name, prompt_scope, reply_name
from outrider.v1 import common_pb2, inference_pb2
from services.router.prefix_index.prompt import TokenIdReader
from services.router.relay.frames import RelayedSession, joined

_MAX_PROMPT_TOKENS: Final = 1 << 20
"""Most tokens of a completed prompt; replicas refuse far shorter ones."""
_WHOLE: Final = frozenset(
    {common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH},
)
"""Finish reasons after which both sides have the same reply."""


class ReceivedPrompts:
    """The prompts of all edges, each trust group's by itself."""

    def __init__(self, max_bytes: int, reader: TokenIdReader) -> None:
        """`max_bytes`: 0 remembers nothing, and every prompt has to come whole."""
        self._reader = reader
        self._memory = PromptMemory(max_bytes)
        self._named: dict[int, tuple[bytes, bytes]] = {}
        """Scope and name of the prompts of live sessions, by router session id."""
        self._wanted: dict[int, tuple[RelayedSession, float]] = {}
        """Sessions whose edge was asked for the whole prompt, each with its deadline."""

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of the remembered prompts."""
        return self._memory.num_bytes

    @property
    def num_wanted(self) -> int:
        """Sessions that wait for their edge to send the whole prompt."""
        return len(self._wanted)

    def complete(self, opening: inference_pb2.OpenSession) -> bytes | None:
        """Put back what was left out, and remember the prompt. Its ids as little-endian u32, b"" if
        they cannot be read; None if the edge has to send the whole."""
        prompt = opening.ids
        tail, digest = prompt.tail, opening.vocabulary_digest
        num_left_out = prompt.prefix_tokens
        scope = self._scope(opening)
        base = prompt.prefix_hash
        ids = self._reader.read(tail.codec, tail.count, tail.payload, digest)
        if num_left_out:
            ids = self._joined(opening, scope, ids)
            if not ids:
                return None
            prompt.ClearField("prefix_tokens")
            prompt.ClearField("prefix_hash")
            tail.payload = self._reader.write(tail.codec, ids, digest)
            tail.count += num_left_out
        if (
            prompt.remember
            and scope
            and ids
            and zlib.crc32(ids, zlib.crc32(digest)) == tail.checksum
        ):
            self._memory.remember(scope, prompt_name(scope, ids), ids, base)
        return ids

    def _scope(self, opening: inference_pb2.OpenSession) -> bytes:
        salt = opening.cache_salt if self._memory.max_bytes else b""
        return prompt_scope(salt, opening.vocabulary_digest)

    def _joined(self, opening: inference_pb2.OpenSession, scope: bytes, tail: bytes) -> bytes:
        """b"" if the beginning is not known, or what comes of it is not what the edge has."""
        prompt, digest = opening.ids, opening.vocabulary_digest
        is_short = prompt.prefix_tokens + prompt.tail.count <= _MAX_PROMPT_TOKENS
        is_read = (
            self._reader.reads(prompt.tail.codec, digest) and len(tail) == 4 * prompt.tail.count
        )
        if not scope or not is_short or not is_read:
            return b""

        def unpack(reply: bytes) -> bytes:
            return self._read_reply(reply, digest)

        prefix = self._memory.prefix(scope, prompt.prefix_hash, prompt.prefix_tokens, unpack)
        if prefix is None:
            return b""
        ids = prefix + tail
        is_right = zlib.crc32(ids, zlib.crc32(digest)) == prompt.tail.checksum
        return ids if is_right else b""

    def _read_reply(self, reply: bytes, digest: bytes) -> bytes:
        """Committed tokens as the relay keeps them."""
        try:
            opening = inference_pb2.OpenSession.FromString(reply)
        except DecodeError:
            return b""
        blocks = [block for block in (opening.resume, *opening.resumed) if block.count]
        return b"".join(self._reader.read(*some, digest) for some in joined(blocks))

    def opened(self, session: RelayedSession, ids: bytes) -> None:
        """A session with this prompt, which `complete` returned."""
        opening = session.open_frame.open
        scope = self._scope(opening)
        if opening.ids.remember and scope and ids:
            self._named[session.router_session_id] = scope, prompt_name(scope, ids)

    def want(self, session: RelayedSession, until: float) -> None:
        """Record that its edge was asked for the whole prompt, which has to arrive by `until`."""
        self._wanted[session.router_session_id] = session, until

    def came(self, session: RelayedSession) -> bool:
        """Record that its edge sent a prompt; False if it was not asked for one."""
        return self._wanted.pop(session.router_session_id, None) is not None

    def expire(self, now: float) -> list[RelayedSession]:
        """Sessions whose edge did not send the whole prompt in time."""
        if not self._wanted:
            return []
        return [session for session, until in self._wanted.values() if until <= now]

    def replied(self, session: RelayedSession, done: inference_pb2.SessionDone) -> None:
        """The reply is whole: it may be the beginning of the next prompt."""
        named, replay = self._named.get(session.router_session_id), session.replay
        if named is None or replay is None or done.finish_reason not in _WHOLE or not done.upto:
            return
        opening = session.open_frame.open
        before = inference_pb2.OpenSession(resume=opening.resume, resumed=opening.resumed)
        reply = before.SerializeToString() + bytes(replay.committed)
        scope, prompt = named
        name = reply_name(scope, prompt, done.upto, done.checksum)
        self._memory.replied(scope, prompt, name, done.upto, reply)

    def ended(self, session: RelayedSession) -> None:
        """A session is over."""
        self._named.pop(session.router_session_id, None)
        self._wanted.pop(session.router_session_id, None)
