"""Names and values of the prefix store's entries.

An entry is one KV block, as a KV frame (outrider.codec.kv), sealed with AES-256-GCM (NIST SP
800-38D) for its name. A name is a keyed hash (BLAKE2b, RFC 7693) of the block's hash, which stands
for the trust group's salt and for all ids up to the block's end. The keys are derived by
HKDF-SHA256 (RFC 5869) from the operator's secret and the model identity, so whoever can read or
write the store without the secret learns no text, finds nothing of any group, and cannot make a
replica take KV that is not its own; and replicas that compute differently find nothing of each
other.

A name begins with the tag of its run, RUN_BLOCKS blocks of a prompt, in braces: a Redis Cluster
keeps what has one tag in one place, so that a run is one request. Runs of one prompt lie anywhere.

What stays visible: how many entries there are, their sizes, which are of one run, and when each is
asked for. Nonces are random: one key seals far fewer than 2^32 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.sealing import Seal

PREFIX: Final = b"outrider:kv:1:"
RUN_BLOCKS: Final = 16
"""Blocks of a prompt, from its first one on, whose names share a tag, which keeps them on one node
of a cluster. All prompts of a trust group with one beginning share its run, so longer runs would
fill one node."""
_NAME_BYTES: Final = 16
_TAG_BYTES: Final = 4


class Sealer:
    """Makes and opens the entries of one model identity. Thread-safe."""

    def __init__(self, secret: str, identity: bytes) -> None:
        """`secret`: the same in all replicas that share the store, and as hard to guess as a key.
        Raises ValueError for an empty one."""
        self._seal = Seal(secret, b"prefix store", identity)

    def names(self, block_hashes: Sequence[bytes]) -> list[bytes]:
        """Names for the blocks of a prompt, given by their hashes (outrider.codec.block_hashes),
        first block first."""
        names = []
        tag = b""
        for index, block_hash in enumerate(block_hashes):
            hashed = self._seal.hashed(block_hash, _NAME_BYTES)
            if index % RUN_BLOCKS == 0:
                tag = self._seal.hashed(block_hash, _TAG_BYTES)
            names.append(PREFIX + b"{" + tag + b"}" + hashed)
        return names

    def seal(self, name: bytes, frame: bytes) -> bytes:
        """The value of `frame` under this name."""
        return self._seal.seal(name, frame)

    def open(self, name: bytes, value: bytes) -> bytes | None:
        """The frame; None for anything that `seal` did not make for this name."""
        return self._seal.open(name, value)
