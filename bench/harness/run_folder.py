"""A folder for the files of a run: deleted after the run, unless it failed."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class RunFolder:
    """A temporary folder."""

    path: Path
    failed: str = ""
    """Why its files are to be kept; "": they are removed."""


@contextlib.contextmanager
def run_folder(name: str) -> Iterator[RunFolder]:
    """A new folder. It stays where it is if the block raises an exception, which then says where,
    or says what `failed`; Ctrl-C and SIGTERM are no failures."""
    folder = RunFolder(Path(tempfile.mkdtemp(prefix=f"outrider-{name}-")))
    try:
        yield folder
    except Exception as error:
        folder.failed = folder.failed or repr(error)
        error.add_note(f"its logs are kept in {folder.path}")
        raise
    finally:
        if folder.failed:
            print(f"{folder.failed}: logs are kept in {folder.path}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
