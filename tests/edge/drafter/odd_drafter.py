"""Drafters that misbehave, for a real one: `odd_drafter.py HOW SETTINGS DESCRIPTOR`."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from outrider.codec.frames import FrameDecoder, encode_frame
from services.edge.drafter.protocol import (
    CommitTokens,
    DrafterReady,
    DraftSource,
    DraftUpdate,
    OpenReply,
    ToDrafter,
    decode_to_drafter,
    encode,
)
from services.edge.drafter.settings import LACKS_MEMORY


def heard(edge: socket.socket) -> Iterator[ToDrafter]:
    """What the edge says, until it is gone."""
    decoder = FrameDecoder()
    while data := edge.recv(1 << 16):
        for payload in decoder.feed(data):
            yield decode_to_drafter(payload)


def draft(message: OpenReply | CommitTokens, base: int) -> bytes:
    """As many drafts as there are ids in the message, each one more than its id."""
    ids = message.prompt if isinstance(message, OpenReply) else message.ids
    drafts = tuple(i + 1 for i in ids)
    chances, sources = (0.9,) * len(ids), (DraftSource.MODEL,) * len(ids)
    return encode_frame(encode(DraftUpdate(message.session, base, drafts, chances, sources)))


def main(how: str, edge: socket.socket) -> int:
    if how == "silent":
        time.sleep(600)
    if how == "forgetful":
        return LACKS_MEMORY
    edge.sendall(encode_frame(encode(DrafterReady(how))))
    if how.startswith("saving:"):
        for _ in heard(edge):
            pass
        Path(how.partition(":")[2]).write_text("whole")
        return 0
    if how == "deaf":
        time.sleep(600)
    if how == "babbling":
        edge.sendall(b"\x05nosuchframe" * 100)
    if how == "mute":
        return len(list(heard(edge)))
    replies: dict[int, int] = {}
    for message in heard(edge):
        if how == "crashing":
            return 3
        if isinstance(message, OpenReply):
            replies[message.session] = len(message.reply)
        elif isinstance(message, CommitTokens):
            replies[message.session] += len(message.ids)
        else:
            continue
        edge.sendall(draft(message, replies[message.session]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], socket.socket(fileno=int(sys.argv[3]))))
