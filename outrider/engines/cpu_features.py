"""What the processor of this machine can do, as Linux tells it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")


@cache
def cpu_flags() -> frozenset[str]:
    """Names as /proc/cpuinfo has them (`avx512_bf16`, `amx_int8`); empty where there is none."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()
