"""The file of keys: whole at every moment, its owner's alone, and never taken if it is damaged."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from outrider.access import keys_file
from outrider.access.api_keys import ApiKey
from outrider.access.keys_file import change, read
from outrider.errors import ConfigError, UnavailableError
from tests.api_keys import key_of, write_keys


def adding(*keys: ApiKey) -> keys_file.Edit:
    def edit(before: tuple[ApiKey, ...]) -> Iterable[ApiKey]:
        return (*before, *keys)

    return edit


def test_changes_add_up(tmp_path: Path) -> None:
    file = tmp_path / "new" / "keys.json"
    assert read(file).keys == () and read(file).revision == 0
    change(file, adding(key_of("a")))
    after = change(file, adding(key_of("b")))
    assert read(file) == after
    assert [key.name for key in after.keys] == ["a", "b"] and after.revision == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    write_keys(file, key_of("c"))
    assert read(file).keys == (key_of("c"),)


def test_a_change_is_on_the_disk_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's bytes before it takes its name, and then the name."""
    file, synced = tmp_path / "keys.json", []
    sync = os.fsync

    def spy(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("folder" if is_folder else "bytes", file.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    keys_file.change(file, adding())
    assert synced == [("bytes", False), ("folder", True)]


def test_a_change_that_cannot_be_leaves_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    change(file, adding(key_of("a")))
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="two keys have the id"):
        change(file, adding(key_of("a")))
    assert file.read_bytes() == before


def test_changes_at_once_are_all_made(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(len(read(file).keys))

    def add(number: int) -> None:
        for one in range(5):
            change(file, adding(key_of(f"{number}-{one}")))

    reader = threading.Thread(target=look)
    reader.start()
    writers = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    reader.join()
    assert len(read(file).keys) == 20 and read(file).revision == 20
    assert seen == sorted(seen), "a reader finds a whole file each time"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": [1]}',
        b'{"keys": [], "keys": []}',
        b'{"keys": [], "revision": -1}',
        b'{"keys": [], "revision": true}',
        b"\xff",
        b'{"keys": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_named(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"keys\.json"):
        read(file)
    with pytest.raises(ConfigError):
        change(file, adding(key_of("a")))
    assert file.read_bytes() == text, "it is not written over"


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": []}) + " " * 100)
    monkeypatch.setattr(keys_file, "MAX_FILE_BYTES", 50)
    with pytest.raises(ConfigError, match="longer than 50"):
        read(file)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        read(tmp_path / "folder")


def test_who_holds_the_lock_is_waited_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    monkeypatch.setattr(keys_file, "_LOCK_S", 0.05)
    with (tmp_path / "keys.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="another process"):
            change(file, adding(key_of("a")))
    change(file, adding(key_of("a")))
