"""What the supervisor of a mesh is told over its socket, and by whom."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.local import control
from outrider.cli.local.changes import Definitions
from outrider.cli.local.control import ask, listening
from outrider.cli.local.mesh import ServedModel
from outrider.errors import (
    ConfigError,
    InsufficientMemoryError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.testing import eventually, leak_check

MODEL = ServedModel("mine", 2, regions=("us-east",))
TABLES = {"mine": {"source": "file:/mine.gguf"}}
ADD = {"do": "add", "model": asdict(MODEL), "definitions": TABLES}


class Noted:
    """Takes changes, and notes them."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.is_busy = False
        self.blocks = False
        self.fails: Exception | None = None

    async def add(
        self, model: ServedModel, definitions: Definitions, say: Callable[[str], None]
    ) -> None:
        say(f"adding {model.name}")
        if self.fails is not None:
            raise self.fails
        try:
            if self.blocks:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.done.append("taken back")
            raise
        self.done.append((model, definitions))

    async def remove(self, name: str, drain_s: float | None, say: Callable[[str], None]) -> None:
        self.done.append((name, drain_s))


async def test_wishes_arrive_and_what_is_said_comes_back(tmp_path: Path) -> None:
    mesh, said = Noted(), list[str]()
    async with listening(tmp_path, mesh):
        mode = (tmp_path / "mesh.sock").stat().st_mode
        assert stat.S_IMODE(mode) & 0o077 == 0
        await ask(tmp_path, ADD, said.append)
        await ask(tmp_path, {"do": "remove", "name": "mine", "drain_s": 1.5}, said.append)
        await ask(tmp_path, {"do": "remove", "name": "mine", "drain_s": None}, said.append)
    assert mesh.done == [(MODEL, TABLES), ("mine", 1.5), ("mine", None)]
    assert said == ["adding mine"]
    assert not (tmp_path / "mesh.sock").exists()


async def test_an_error_comes_back_as_what_it_is(tmp_path: Path) -> None:
    mesh = Noted()
    mesh.fails = InsufficientMemoryError("no room")
    async with listening(tmp_path, mesh):
        with pytest.raises(InsufficientMemoryError, match="no room"):
            await ask(tmp_path, ADD, print)


async def test_what_the_machine_refuses_is_said(tmp_path: Path) -> None:
    mesh = Noted()
    mesh.fails = OSError(28, "No space left on device")
    async with listening(tmp_path, mesh):
        with pytest.raises(UnavailableError, match="No space left"):
            await ask(tmp_path, ADD, print)


@pytest.mark.parametrize(
    "wish",
    [
        [],
        {},
        {"do": "stop"},
        {"do": "add"},
        {"do": "add", "model": {"name": "a", "more": 1}},
        {**ADD, "definitions": {"mine": {"source": "nowhere"}}},
        {**ADD, "definitions": {"../mine": {"source": "file:/m"}}},
        {"do": "remove", "name": "mine", "drain_s": "long"},
    ],
)
async def test_what_is_no_wish_is_refused(tmp_path: Path, wish: Any) -> None:
    mesh = Noted()
    async with listening(tmp_path, mesh):
        with pytest.raises(ConfigError):
            await ask(tmp_path, wish, print)
    assert mesh.done == []


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"\xff\n", b"", b"[" * (5 << 20) + b"\n"])
async def test_what_is_no_json_is_refused(tmp_path: Path, line: bytes) -> None:
    mesh = Noted()
    async with listening(tmp_path, mesh):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "mesh.sock")
        writer.write(line)
        writer.write_eof()
        assert json.loads(await reader.readline())["error"]["reason"] == ConfigError.reason
        writer.close()
    assert mesh.done == []


async def test_one_change_at_a_time(tmp_path: Path) -> None:
    mesh = Noted()
    mesh.is_busy = True
    async with listening(tmp_path, mesh):
        with pytest.raises(OverloadedError, match="under way"):
            await ask(tmp_path, ADD, print)


async def test_who_goes_away_takes_the_wish_back(tmp_path: Path) -> None:
    mesh, said = Noted(), list[str]()
    mesh.blocks = True
    async with leak_check(), listening(tmp_path, mesh):
        asking = asyncio.create_task(ask(tmp_path, ADD, said.append))
        await eventually(lambda: bool(said))
        asking.cancel()
        await eventually(lambda: mesh.done == ["taken back"])
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_end_of_the_mesh_takes_a_wish_back(tmp_path: Path) -> None:
    mesh, said = Noted(), list[str]()
    mesh.blocks = True
    async with leak_check():
        async with listening(tmp_path, mesh):
            asking = asyncio.create_task(ask(tmp_path, ADD, said.append))
            await eventually(lambda: bool(said))
        assert mesh.done == ["taken back"]
        with pytest.raises(UnavailableError, match="does not answer"):
            await asking


async def test_without_a_mesh_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await ask(tmp_path, ADD, print)


async def test_a_folder_with_a_long_path_has_room_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["f" * 100] * 3)
    folder.mkdir(parents=True)
    mesh = Noted()
    (folder / "mesh.sock").touch()  # left behind
    async with listening(folder, mesh):
        await ask(folder, {"do": "remove", "name": "a"}, print)
    assert mesh.done == [("a", None)]


async def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Noted()
    async with listening(tmp_path, mesh):
        me = os.getuid()
        if me == 0:
            monkeypatch.setattr(control, "_ALLOWED_ALWAYS", frozenset())
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        with pytest.raises(OutriderError, match="own user"):
            await ask(tmp_path, ADD, print)
    assert mesh.done == []
