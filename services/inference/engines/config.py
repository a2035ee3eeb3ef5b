"""What an engine is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from outrider.errors import ConfigError
from services.inference.engines.fake import FakeOptions

DEFAULT_KV_BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Which engine, which model, how much memory, which arithmetic."""

    engine: Literal["openvino", "fake"] = "openvino"
    model: str = ""
    """A name of the model catalog; "" is the default model."""
    model_store: Path | None = None
    """The model store's directory; None is the machine's."""
    threads: int = 1
    """Threads of one call."""
    kv_bytes: int = DEFAULT_KV_BYTES
    """Memory of the KV pool, rounded down to whole blocks; touched only as it fills."""
    num_blocks: int | None = None
    """Blocks of the KV pool; given, it decides instead of kv_bytes."""
    precision: Literal["bf16", "f32"] = "bf16"
    """Arithmetic of attention and of everything between the weight products, and of the KV."""
    exact: bool = True
    """Whether a row is the same bits in every batch and chunking (EngineInfo.exact)."""
    fake: FakeOptions = field(default_factory=FakeOptions)
    """The fake engine's shape; num_blocks above is the other engine's."""

    def __post_init__(self) -> None:
        if self.engine not in ("openvino", "fake"):
            raise ConfigError(f"there is no engine {self.engine!r}; use openvino or fake")
        if self.precision not in ("bf16", "f32"):
            raise ConfigError(f"there is no precision {self.precision!r}; use bf16 or f32")
        if self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; give at least 1")
        if self.num_blocks is not None and self.num_blocks < 1:
            raise ConfigError(f"num_blocks is {self.num_blocks}; give at least 1")
        if self.kv_bytes < 1:
            raise ConfigError(f"kv_bytes is {self.kv_bytes}; give at least one block's size")
