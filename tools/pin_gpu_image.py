"""Pin what the image for GPUs installs beside TensorRT-LLM, and record what that asks of it.

python3.12 -m tools.pin_gpu_image    with pip 24 or later: it reads metadata and fetches no wheel

NVIDIA's image brings torch, tensorrt_llm and some 150 packages. Outrider's go into a virtual
environment on top of it, where they hide the image's of the same names; so both must agree on them.
pip resolves the requirements of both together, for the Python of the image. Written are:

- requirements/inference-gpu.txt: Outrider's packages and theirs, by hash. LEFT_TO_THE_IMAGE are not
  among them: TensorRT-LLM's versions of these serve both.
- requirements/tensorrt-llm.txt: what TensorRT-LLM and its packages ask of the pinned ones, which
  tools/deploy_checks/gpu_image.py compares offline.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from packaging.markers import default_environment
from packaging.requirements import Requirement

from tools.deploy_checks.gpu_image import ASKED, LEFT_TO_THE_IMAGE, PINS, PYTHON, normal
from tools.pin_hashes import FOLDER, ROOT, pin, project_requirements, report

TENSORRT_LLM: Final = FOLDER / "tensorrt-llm.in"
_NAME: Final = "tensorrt-llm"

Resolution: TypeAlias = Mapping[str, Mapping[str, Any]]
"""pip's report by normalised name."""


def lines(path_text: str) -> list[str]:
    """Requirements of a file without its comments."""
    found = [line.partition("#")[0].strip() for line in path_text.splitlines()]
    return [line for line in found if line]


def required(item: Mapping[str, Any], extras: Sequence[str] = ()) -> Iterator[Requirement]:
    """Requirements of one package on this platform, with these extras."""
    environment = {key: str(value) for key, value in default_environment().items()}
    for text in item["metadata"].get("requires_dist", ()):
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(
            marker.evaluate({**environment, "extra": extra}) for extra in extras or ("",)
        ):
            yield requirement


def closure(requirements: Sequence[str], resolution: Resolution, stop: frozenset[str]) -> set[str]:
    """Names of these packages and of all that they require, without `stop` and the packages that
    only `stop` requires."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        if name not in found and name not in stop and name in resolution:
            found.add(name)
            waiting += required(resolution[name], tuple(requirement.extras))
    return found


def asked(
    theirs: Sequence[str], resolution: Resolution, pinned: set[str]
) -> Iterator[tuple[str, str]]:
    """Requirements that TensorRT-LLM and its packages have for pinned packages, each with the
    package that has it."""
    direct = [Requirement(text) for text in theirs]
    for requirement in direct:
        if normal(requirement.name) in pinned and requirement.specifier:
            yield f"{normal(requirement.name)}{requirement.specifier}", _NAME
    for name in sorted(closure(theirs, resolution, frozenset())):
        for requirement in required(resolution[name]):
            if normal(requirement.name) in pinned and requirement.specifier:
                version = resolution[name]["metadata"]["version"]
                yield f"{normal(requirement.name)}{requirement.specifier}", f"{name} {version}"


def main() -> int:
    if sys.version_info[:2] != PYTHON:
        print(f"run it with Python {PYTHON[0]}.{PYTHON[1]}, that of the image", file=sys.stderr)
        return 2
    ours, theirs = project_requirements(), lines(TENSORRT_LLM.read_text("utf-8"))
    free = _resolution([*ours, *theirs])
    names = closure(ours, free, LEFT_TO_THE_IMAGE)
    tested = [
        line
        for line in lines((ROOT / "constraints.txt").read_text("utf-8"))
        if normal(re.split("[=<>]", line)[0]) in names
    ]
    resolution = _resolution([*ours, *theirs, *tested])
    names = closure(ours, resolution, LEFT_TO_THE_IMAGE)
    head = (
        "# Written by `python -m tools.pin_gpu_image`: "
        f"Python {PYTHON[0]}.{PYTHON[1]} on linux/amd64.\n"
    )
    pins = "\n".join(sorted((pin(resolution[name]) for name in names), key=str.lower))
    (FOLDER / PINS).write_text(f"{head}{pins}\n", "utf-8")
    asks = "\n".join(f"{text}  # {who}" for text, who in sorted(asked(theirs, resolution, names)))
    (FOLDER / ASKED).write_text(f"{head}{asks}\n", "utf-8")
    print(f"{len(names)} packages, of which TensorRT-LLM's ask {asks.count(chr(10)) + 1} things")
    return 0


def _resolution(requirements: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {normal(item["metadata"]["name"]): item for item in report(requirements)}


if __name__ == "__main__":
    sys.exit(main())
