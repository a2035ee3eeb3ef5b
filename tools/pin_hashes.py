"""Pin what images install by hash: deploy/docker/requirements/ROLE.txt, from constraints.txt.

python -m tools.pin_hashes           write them, for the Python that runs this (images: 3.11)

pip resolves each role's extras as it would in the image, for each platform, without installing
anything, and reports the sha256 of every file it would take; `pip install --require-hashes` takes
no other. The image for GPUs has pins of its own: tools/pin_gpu_image.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "deploy" / "docker" / "requirements"
EXTRAS: Final = {
    "edge": ("edge", "draft", "redis", "s3", "otlp"),
    "router": ("router", "otlp"),
    "tokenizer": ("tokenizer", "redis", "s3", "otlp"),
    "inference": ("inference", "redis", "s3", "otlp"),
}
"""Extras that each image installs."""
OF_OLD_PYTHONS: Final = {"redis": ("async-timeout>=4.0.3",)}
"""What packages of extras ask for below Python 3.11.3, which Debian 12 has not reached."""
PLATFORMS: Final = {
    machine: [f"manylinux_2_{minor}_{machine}" for minor in range(17, 37)]
    + [f"manylinux2014_{machine}"]
    for machine in ("x86_64", "aarch64")
}
"""Tags of wheels that images take, by machine: Debian 12 has glibc 2.36."""
BUILD: Final = "build"
"""Name of the file with the requirements that build Outrider's own wheel."""


def project_requirements() -> list[str]:
    """Requirements of every role, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return list(project["project"]["dependencies"])


def needed(role: str) -> list[str]:
    """The requirements of one file, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    if role == BUILD:
        return list(project["build-system"]["requires"])
    extras = project["project"]["optional-dependencies"]
    found, waiting = project_requirements(), list(EXTRAS[role])
    while waiting:
        extra = waiting.pop()
        found += OF_OLD_PYTHONS.get(extra, ())
        for requirement in extras[extra]:
            inner = requirement.removeprefix("outrider[").removesuffix("]")
            if inner == requirement:
                found.append(requirement)
            else:
                waiting += inner.split(",")
    return found


def resolved(requirements: Sequence[str]) -> list[str]:
    """Lines `NAME==VERSION --hash=sha256:...`, sorted; with a hash for each platform whose file
    is another one.

    Raises ValueError if a platform takes another version, or a package that another does not.
    """
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    found: dict[str, list[str]] = {}
    for tags in PLATFORMS.values():
        of_platform = (part for tag in tags for part in ("--platform", tag))
        wanted = ("--target", "nowhere", *of_platform, *constraints, *requirements)
        for line in map(pin, report(("--only-binary", ":all:", *wanted))):
            name, digest = line.split(" ")
            found.setdefault(name, []).append(digest)
    lone = [name for name, digests in found.items() if len(digests) != len(PLATFORMS)]
    if lone:
        raise ValueError(f"not alike on {' and '.join(PLATFORMS)}: {', '.join(lone)}")
    lines = (" ".join([name, *dict.fromkeys(digests)]) for name, digests in found.items())
    return sorted(lines, key=str.lower)


def report(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The files that pip would install, with their metadata; nothing is installed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
            *("--report", "-", *arguments),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    items: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return items


def pin(item: Mapping[str, Any]) -> str:
    """`NAME==VERSION --hash=sha256:...` of one file of pip's report."""
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={version} --hash=sha256:{digest}"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for role in (*EXTRAS, BUILD):
        text = "\n".join(resolved(needed(role)))
        head = "# Written by `python -m tools.pin_hashes`: Python 3.11, linux/amd64 and arm64.\n"
        (FOLDER / f"{role}.txt").write_text(f"{head}{text}\n", "utf-8")
        print(f"{role}: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
