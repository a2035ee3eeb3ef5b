"""The file of API keys: read by edges, changed by `outrider keys`.

Changes are atomic: a new file replaces the old one, so a reader always finds a whole file. They are
durable: a key reported as revoked stays revoked after a loss of power. A writer holds the lock of a
file beside it; readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.access.api_keys import MAX_KEYS, ApiKey, KeyTable, of_row, to_row
from outrider.durable_files import write_atomic
from outrider.errors import ConfigError, UnavailableError
from outrider.models.strict_json import read_object

MAX_FILE_BYTES: Final = 16 << 20
"""10,000 keys take some 4 MB."""
_LOCK_S: Final = 5.0
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """Contents of the keys file."""

    keys: tuple[ApiKey, ...] = ()
    revision: int = 0
    """Goes up by one with each change; a running edge reports the one that it has loaded."""


def read(file: Path) -> StoredKeys:
    """Contents of the file; no keys if it does not exist. Raises ConfigError."""
    try:
        with file.open("rb") as source:
            text = source.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return StoredKeys()
    except OSError as error:
        raise ConfigError(f"cannot read the keys in {file}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{file} is longer than {MAX_FILE_BYTES} bytes; that is no file of keys")
    try:
        stored = read_object(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} holds no keys: {error}; restore it from a copy") from error
    rows, revision = stored.get("keys"), stored.get("revision", 0)
    if not isinstance(rows, list) or len(rows) > MAX_KEYS:
        raise ConfigError(f"{file}: keys is a list of at most {MAX_KEYS} objects")
    if type(revision) is not int or not 0 <= revision < 1 << 53:
        raise ConfigError(f"{file}: revision is a whole number from 0")
    try:
        keys = tuple(of_row(row) for row in rows)
        KeyTable(keys)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}") from error
    return StoredKeys(keys, revision)


Edit = Callable[[tuple[ApiKey, ...]], Iterable[ApiKey]]
"""Makes the new list of keys from the present one."""


def change(file: Path, edit: Edit) -> StoredKeys:
    """Replace the keys by what `edit` makes of them; returns what the file holds then. Raises
    ConfigError, UnavailableError if another process does not let go of the file."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(file.with_name(f"{file.name}.lock")):
        before = read(file)
        after = StoredKeys(tuple(edit(before.keys)), before.revision + 1)
        KeyTable(after.keys)
        _write(file, after)
    return after


def _write(file: Path, stored: StoredKeys) -> None:
    rows = ",\n".join(json.dumps(to_row(key), ensure_ascii=False) for key in stored.keys)
    write_atomic(file, f'{{"revision": {stored.revision}, "keys": [\n{rows}\n]}}\n'.encode())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        limit = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise UnavailableError(
                        f"another process changes the keys beside {path}; try again"
                    ) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
