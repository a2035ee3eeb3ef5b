"""Directories built from an artifact (a converted model): built once, whole or absent, verified.

A manifest of every file's size and sha256 lies inside the directory and is checked on every load;
a directory that differs from its manifest in any way is rebuilt, never used.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from outrider.durable_files import sync_directory, sync_file, write_atomic
from outrider.errors import ConfigError, ModelStoreError
from outrider.models.disk.files import empty_directory, exclusive, file_sha256

MANIFEST = ".manifest.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


def check_name(name: str) -> str:
    """A derived directory's name. ConfigError if it is no plain file name."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} cannot name a derived directory; use letters, digits and ._+-")
    return name


def build_once(final: Path, scratch: Path, lock: Path, build: Callable[[Path], None]) -> Path:
    """`final`, verified; built by `build(empty directory)` if it is missing or damaged.

    A verified directory is returned without the lock and without writing, so a read-only store
    serves. Errors of `build` pass through and leave nothing. ModelStoreError if it built no file.
    """
    if is_intact(final):
        return final
    with exclusive(lock):
        if is_intact(final):
            return final
        try:
            build(empty_directory(scratch))
            _seal(scratch)
            _publish(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def is_intact(directory: Path) -> bool:
    """Whether a directory holds exactly the files of its manifest, byte for byte."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        return bool(manifest == _measure(directory))
    except (OSError, ValueError, ModelStoreError):
        return False


def _measure(directory: Path) -> dict[str, list[int | str]]:
    measured: dict[str, list[int | str]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ModelStoreError(f"{path} is neither a file nor a directory; build plain files")
        if path.is_file() and path != directory / MANIFEST:
            name = path.relative_to(directory).as_posix()
            measured[name] = [path.stat().st_size, file_sha256(path)]
    return measured


def _seal(directory: Path) -> None:
    measured = _measure(directory)
    if not measured:
        raise ModelStoreError(f"nothing was built for {directory.name}; the build must write files")
    for path in directory.rglob("*"):
        if path.is_file():
            sync_file(path)
        else:
            sync_directory(path)
    write_atomic(directory / MANIFEST, json.dumps(measured, indent=1).encode(), mode=0o644)


def _publish(built: Path, final: Path) -> None:
    """Replace `final` by `built`. Between the two renames neither exists; a mix of both never
    does."""
    final.parent.mkdir(parents=True, exist_ok=True)
    damaged = built.with_name(built.name + ".damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    if final.exists():
        final.rename(damaged)
    built.rename(final)
    sync_directory(final.parent)
    shutil.rmtree(damaged, ignore_errors=True)
