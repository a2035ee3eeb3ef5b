"""The manifest of a model: the digest of the whole and of each shard. Pure.

A mirror has for each model, below its folder or prefix:

    SHA256/manifest.json    what this module reads and writes
    SHA256/000000 ...       the shards, each `shard_bytes` long, the last one shorter

The digest of the whole is pinned by definitions and part of a replica's identity; shards' digests
let a damaged shard be refused before the rest has arrived. A manifest is trusted only once the
whole has the digest that was asked for.
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
"""Default size of a shard: a broken connection loses at most this, and a request costs little
beside it."""
MIN_SHARD_BYTES: Final = 1 << 10
MAX_SHARD_BYTES: Final = 256 << 20
MAX_SHARDS: Final = 1 << 16
"""1 TiB in shards of the usual size."""
MAX_MANIFEST_BYTES: Final = 8 << 20
"""Room for so many digests."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Digests of one model: a file, or the archive of a folder."""

    sha256: str
    """SHA-256 of the whole, hexadecimal."""
    num_bytes: int
    """Size of the whole."""
    shard_bytes: int
    """Size of each shard but the last."""
    shards: tuple[str, ...]
    """SHA-256 of each, hexadecimal."""

    def extent(self, shard: int) -> tuple[int, int]:
        """Offset of a shard in the whole, and its size in bytes."""
        begin = shard * self.shard_bytes
        return begin, min(self.shard_bytes, self.num_bytes - begin)

    def to_json(self) -> str:
        """For a mirror."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"


def num_shards(num_bytes: int, shard_bytes: int) -> int:
    """Number of shards of `num_bytes` bytes, which may be 0."""
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
    """Path of a model's manifest in a mirror."""
    return f"{sha256}/manifest.json"


def shard_name(sha256: str, shard: int) -> str:
    """Path of a shard in a mirror."""
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
