"""Pin what images install by hash: deploy/docker/requirements/ROLE.txt, from constraints.txt.

python -m tools.pin_hashes           write them, for the Python that runs this (images: 3.11, amd64)

pip resolves each role's extras as it would in the image, without installing anything, and reports
the sha256 of every file it would take; `pip install --require-hashes` takes no other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "deploy" / "docker" / "requirements"
EXTRAS: Final = {
    "edge": ("edge", "draft"),
    "router": ("router",),
    "tokenizer": ("tokenizer", "fast-tokenizers", "redis"),
    "inference": ("inference",),
}
"""What each image holds."""
BUILD: Final = "build"
"""What builds Outrider's own wheel."""


def needed(role: str) -> list[str]:
    """The requirements of one file, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    if role == BUILD:
        return list(project["build-system"]["requires"])
    extras = project["project"]["optional-dependencies"]
    found, waiting = list(project["project"]["dependencies"]), list(EXTRAS[role])
    while waiting:
        for requirement in extras[waiting.pop()]:
            inner = requirement.removeprefix("outrider[").removesuffix("]")
            if inner == requirement:
                found.append(requirement)
            else:
                waiting += inner.split(",")
    return found


def resolved(requirements: Sequence[str]) -> list[str]:
    """Lines `NAME==VERSION --hash=sha256:...`, sorted."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
            *("--only-binary", ":all:", "--report", "-"),
            *("--constraint", str(ROOT / "constraints.txt"), *requirements),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    for item in json.loads(done.stdout)["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for role in (*EXTRAS, BUILD):
        text = "\n".join(resolved(needed(role)))
        head = "# Written by `python -m tools.pin_hashes`: Python 3.11 on linux/amd64.\n"
        (FOLDER / f"{role}.txt").write_text(f"{head}{text}\n", "utf-8")
        print(f"{role}: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
