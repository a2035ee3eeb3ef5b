"""Connection IDs of an edge with several processes, and the resets by which a client learns that
its connection is lost."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from outrider.workers.worker import Worker

RETRY_KEY_BYTES: Final = 16
_RESET_TOKEN_BYTES: Final = 16
MIN_RESET_BYTES: Final = 21
"""The shortest stateless reset (RFC 9000, section 10.3)."""
MAX_RESET_BYTES: Final = 43
"""The longest reset made here: as short as a packet with little in it."""
_FIXED_BIT: Final = 0x40
_SHORT_HEADER_BITS: Final = 0x3F


class ConnectionIds:
    """Connection IDs and reset tokens of one process. IDs name the process
    (outrider.workers.steering). Reset tokens are derived from them by a key that all processes
    have, so that any process can reset the connections of one that died (RFC 9000, section
    10.3.2)."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._reset_key = worker.key("stateless reset")

    @property
    def retry_key(self) -> bytes:
        """For the tokens of Retry packets: any process takes those of another."""
        return self._worker.key("retry")[:RETRY_KEY_BYTES]

    def new(self, num_bytes: int) -> bytes:
        """An ID that names this process, and is random otherwise."""
        return self._worker.named(num_bytes)

    def reset_token(self, cid: bytes) -> bytes:
        """The stateless reset token of the connection with this ID."""
        return blake2b(cid, key=self._reset_key, digest_size=_RESET_TOKEN_BYTES).digest()

    def reset(self, cid: bytes, num_received: int, random: bytes) -> bytes:
        """A stateless reset that answers a packet of `num_received` bytes; empty if the packet is
        too short: a reset has to be shorter than its packet, or two sides without state would
        answer each other for ever (section 10.3.3). `random`: at least MAX_RESET_BYTES bytes."""
        size = min(num_received - 1, MAX_RESET_BYTES)
        if size < MIN_RESET_BYTES:
            return b""
        first = _FIXED_BIT | random[0] & _SHORT_HEADER_BITS
        noise = random[1 : size - _RESET_TOKEN_BYTES]
        return bytes([first]) + noise + self.reset_token(cid)
