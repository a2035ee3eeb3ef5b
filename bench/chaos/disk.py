"""A small disk that can be full: a tmpfs."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 16 << 20
_CHUNK: Final = bytes(1 << 16)


class SmallDisk:
    """A folder with room for SIZE_BYTES."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no room at all."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for chunk in (_CHUNK, _CHUNK[:1]):
                with contextlib.suppress(OSError):  # ENOSPC
                    while ballast.write(chunk) == len(chunk):
                        pass

    def empty(self) -> None:
        """The room is there again."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk() -> Iterator[SmallDisk]:
    """One that ends with the context. Needs root. Raises CalledProcessError where this process may
    mount nothing."""
    with tempfile.TemporaryDirectory(prefix="outrider-disk-") as folder:
        options = f"size={SIZE_BYTES},mode=700"
        subprocess.run(("mount", "-t", "tmpfs", "-o", options, "none", folder), check=True)
        try:
            yield SmallDisk(Path(folder))
        finally:
            subprocess.run(("umount", "--lazy", folder), check=False)
