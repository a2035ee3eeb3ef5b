"""Properties of this machine's processor, from Linux."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")
_CACHES: Final = Path("/sys/devices/system/cpu")
_CHANGING: Final = frozenset(
    {
        "processor",
        "cpu MHz",
        "physical id",
        "core id",
        "apicid",
        "initial apicid",
        "bogomips",
        "BogoMIPS",
    }
)
"""Fields of /proc/cpuinfo that differ between equal processors, or from one moment to the next."""


@cache
def cpu_flags() -> frozenset[str]:
    """Feature names as in /proc/cpuinfo (`avx512_bf16`, `amx_int8`); empty without that file."""
    lines = [line for line in _cpuinfo().splitlines() if line.startswith("flags")]
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()


@cache
def cpu_identity() -> str:
    """A text that differs between two machines if programs that choose kernels by the processor may
    choose different ones: all of /proc/cpuinfo that is constant (family, model, stepping, flags),
    cache sizes, and the number of CPUs this process may use. "" if Linux does not provide them."""
    text = _cpuinfo()
    if not text:
        return ""
    fields = {line for line in text.splitlines() if _field_name(line) not in _CHANGING}
    sizes = {
        f"{path.parent.name} {path.read_text(encoding='utf-8').strip()}"
        for path in _CACHES.glob("cpu[0-9]*/cache/index*/size")
    }
    num_cpus = len(os.sched_getaffinity(0))
    return "\n".join([*sorted(fields - {""}), *sorted(sizes), f"usable CPUs: {num_cpus}"])


def _field_name(line: str) -> str:
    return line.partition(":")[0].strip()


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return ""
