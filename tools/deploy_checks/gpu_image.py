"""Whether the pins of the image for GPUs fit Outrider and TensorRT-LLM, from recorded lists.

The image itself is not at hand: its contents are listed in NVIDIA's catalogue, not in the package
index. Known are the requirements of tensorrt-llm and, resolved once by tools/pin_gpu_image.py,
those of the packages it pulls in. A pin that one of them refuses would break the image's runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

PYTHON: Final = (3, 12)
"""Python version of NVIDIA's release image."""
PINS: Final = "inference-gpu.txt"
ASKED: Final = "tensorrt-llm.txt"
LEFT_TO_THE_IMAGE: Final = frozenset({"numpy", "tokenizers"})
"""TensorRT-LLM pins these itself: numpy below 2, and transformers, which pins tokenizers."""
_PIN: Final = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pin_problems(folder: Path, ours: Sequence[str]) -> Iterator[str]:
    """Problems in the pins of a folder; `ours` are Outrider's own requirements."""
    pins: dict[str, str] = {}
    for line in _lines(folder / PINS):
        match = _PIN.fullmatch(line)
        if match is None:
            yield f"{PINS}: {line[:80]!r} is not NAME==VERSION --hash=sha256:..."
        else:
            pins[normal(match[1])] = match[2]
    for name in sorted(LEFT_TO_THE_IMAGE & pins.keys()):
        yield f"{PINS}: {name} would hide TensorRT-LLM's own; leave it out"
    for text in ours:
        requirement = Requirement(text)
        name = normal(requirement.name)
        if name not in pins and name not in LEFT_TO_THE_IMAGE:
            yield f"{PINS}: {name} is missing, which pyproject.toml requires"
        elif name in pins and not requirement.specifier.contains(pins[name], prereleases=True):
            yield f"{PINS}: {name} {pins[name]}, but pyproject.toml requires {text}"
    for line in _lines(folder / ASKED):
        text, _, who = line.partition("#")
        requirement = Requirement(text.strip())
        found = pins.get(normal(requirement.name))
        if found is not None and not requirement.specifier.contains(found, prereleases=True):
            yield f"{PINS}: {requirement.name} {found}, but {who.strip()} asks for {text.strip()}"


def _lines(path: Path) -> list[str]:
    return [
        line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
