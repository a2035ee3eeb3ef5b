"""The earlier version that this one has to work with: the newest release before this commit or,
until there is one, the commit that is named here.

While a mesh is upgraded both run in it, so each has to understand the other's messages and files.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UNRELEASED: Final = "89df76095cadc8be2e1002c3c5bb646f9476b650"
"""The earlier version while no release has a tag: the oldest commit whose messages this version can
read. Whoever breaks the wire format on purpose names a newer one here, in the same commit; once
there is a release, the format is not broken any more."""
_RELEASE: Final = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


class NoHistoryError(Exception):
    """The repository does not have the earlier version. Its text is a sentence that says so."""


def newest_release(tags: Sequence[str]) -> str | None:
    """The tag with the highest version; only tags such as v1.2.3 are releases."""
    numbers = {
        tag: tuple(map(int, found.groups())) for tag in tags if (found := _RELEASE.fullmatch(tag))
    }
    return max(numbers, key=lambda tag: numbers[tag], default=None)


def earlier_commit(root: Path = ROOT) -> str:
    """Id of the earlier version's commit. Raises NoHistoryError."""
    tags = _git(root, "tag", "--merged", "HEAD~1").decode().split()
    return commit_of(newest_release(tags) or UNRELEASED, root)


def commit_of(revision: str, root: Path = ROOT) -> str:
    """Id of the commit that a revision names. Raises NoHistoryError."""
    asked = f"{revision}^{{commit}}"
    return _git(root, "rev-parse", "--verify", "--end-of-options", asked).decode().strip()


def extract(commit: str, folder: Path, *paths: str, root: Path = ROOT) -> None:
    """Write a commit's files into `folder`; all of them, or those below `paths`. Raises
    NoHistoryError."""
    archive = _git(root, "archive", "--format=tar", commit, "--", *paths)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True)
    except OSError as error:
        raise NoHistoryError(
            f"the earlier version needs git, which does not run: {error}"
        ) from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise NoHistoryError(
            f"the earlier version is not in this copy of the repository ({why}); "
            "a whole clone has it: git fetch --unshallow --tags"
        )
    return done.stdout
