"""What a model is made of: the digest of the whole, and of each shard of it. Pure.

A mirror holds of each model, below its folder or prefix:

    SHA256/manifest.json    what this module reads and writes
    SHA256/000000 ...       the shards, each `shard_bytes` long, the last one shorter

The digest of the whole is what definitions pin and what a replica's identity is made of; shards'
digests let one that is damaged be refused before the rest has come. A manifest is believed only
once the whole has the digest that was asked for.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Final

from outrider.errors import ConfigError, SourceError
from outrider.models.strict_json import read_object

VERSION: Final = 1
DEFAULT_SHARD_BYTES: Final = 16 << 20
"""What a connection that breaks loses at most, and a request costs little beside."""
MIN_SHARD_BYTES: Final = 1 << 10
MAX_SHARD_BYTES: Final = 256 << 20
MAX_SHARDS: Final = 1 << 16
"""1 TiB in shards of the usual size."""
MAX_MANIFEST_BYTES: Final = 8 << 20
"""Room for so many digests."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Of one model: a file, or the archive of a folder."""

    sha256: str
    """Of the whole, hexadecimal."""
    num_bytes: int
    """Of the whole."""
    shard_bytes: int
    """Of each shard but the last."""
    shards: tuple[str, ...]
    """SHA-256 of each, hexadecimal."""

    def extent(self, shard: int) -> tuple[int, int]:
        """Where a shard lies in the whole: its first byte, and how many it has."""
        begin = shard * self.shard_bytes
        return begin, min(self.shard_bytes, self.num_bytes - begin)

    def to_json(self) -> str:
        """For a mirror."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"


def num_shards(num_bytes: int, shard_bytes: int) -> int:
    """Of a whole of so many bytes, which may be 0."""
    return -(-num_bytes // shard_bytes)


def check_shard_bytes(shard_bytes: int, num_bytes: int) -> int:
    """Raises ConfigError for a size that no manifest may have."""
    if not MIN_SHARD_BYTES <= shard_bytes <= MAX_SHARD_BYTES:
        raise ConfigError(
            f"shards of {shard_bytes} bytes cannot be; use {MIN_SHARD_BYTES} to {MAX_SHARD_BYTES}"
        )
    if num_shards(num_bytes, shard_bytes) > MAX_SHARDS:
        raise ConfigError(
            f"{num_bytes} bytes have more than {MAX_SHARDS} shards of {shard_bytes}; use larger "
            "ones"
        )
    return shard_bytes


def manifest_name(sha256: str) -> str:
    """Where a mirror has the manifest of a model."""
    return f"{sha256}/manifest.json"


def shard_name(sha256: str, shard: int) -> str:
    """Where a mirror has a shard."""
    return f"{sha256}/{shard:06}"


def read_manifest(data: bytes, sha256: str) -> Manifest:
    """From a mirror, of the model that was asked for. Raises SourceError for anything else."""
    try:
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES} bytes")
        return _checked(read_object(data), sha256)
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise SourceError(
            f"its manifest of {sha256} cannot be used ({error}"[:300]
            + "); push the model there again"
        ) from error


def _checked(found: dict[str, object], sha256: str) -> Manifest:
    if found.get("version") != VERSION:
        raise ValueError(f"its version is {found.get('version')!r}, this is {VERSION}")
    shards, num_bytes, shard_bytes = found["shards"], found["num_bytes"], found["shard_bytes"]
    if found["sha256"] != sha256:
        raise ValueError("it is of another model")
    if type(num_bytes) is not int or type(shard_bytes) is not int or num_bytes < 0:
        raise TypeError("its sizes are no numbers")
    check_shard_bytes(shard_bytes, num_bytes)
    if not isinstance(shards, list) or len(shards) != num_shards(num_bytes, shard_bytes):
        raise ValueError("it has not as many shards as its sizes say")
    if not all(isinstance(one, str) and _SHA256.fullmatch(one) for one in shards):
        raise ValueError("a shard's digest is none")
    return Manifest(sha256, num_bytes, shard_bytes, tuple(shards))
