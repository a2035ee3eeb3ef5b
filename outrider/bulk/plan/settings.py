"""What the output of a bulk run depends on, besides its input and its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError

FORMATS: Final = ("parquet", "arrow")
COMPRESSIONS: Final = ("none", "lz4", "zstd")
DEFAULT_SHARD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Raises ConfigError at construction."""

    format: str = "parquet"
    """One of FORMATS; arrow is the Arrow IPC file format."""
    compression: str = "none"
    """One of COMPRESSIONS."""
    field: str = "text"
    """Where a record has its text: field of JSON objects, column of Parquet files."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """Text that a shard is made of, about; a longer text file is cut."""
    token_offsets: bool = False
    """Whether each token's first byte is told."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("compression", self.compression, COMPRESSIONS),
        ):
            if value not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if self.shard_bytes < 1:
            raise ConfigError(f"a shard of {self.shard_bytes} bytes holds nothing: give more")
        if not self.field:
            raise ConfigError("the field that holds the text has no name")

    @property
    def suffix(self) -> str:
        """Of the shards' names."""
        return f".{self.format}"
