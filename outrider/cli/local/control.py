"""How the supervisor of a mesh is told, while it runs, which models to serve.

It listens on a Unix socket in its state folder, which only its user can open. Each connection asks
for one change: a JSON object on a line. The answers are lines too, {"say": TEXT} as it goes on, at
last {"done": true} or {"error": {"reason": ..., "message": ...}}. A caller that goes away before
that takes its wish back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from outrider.cli.local.changes import Definitions
from outrider.cli.local.changing import Say
from outrider.cli.local.mesh import ServedModel, served_model
from outrider.errors import (
    ConfigError,
    OutriderError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
    by_reason,
)
from outrider.models.definitions import Place, read_definitions
from outrider.models.sources import parse_source

_SOCKET: Final = "mesh.sock"
_MAX_LINE_BYTES: Final = 4 << 20
"""Definitions have chat templates."""
_ALLOWED_ALWAYS: Final = frozenset({0})
"""The superuser."""
_ASK_LIMIT_S: Final = 10.0
"""A caller says what it wants sooner than this."""


class Changeable(Protocol):
    """The models of a mesh."""

    @property
    def is_busy(self) -> bool: ...

    async def add(self, model: ServedModel, definitions: Definitions, say: Say) -> None: ...

    async def remove(self, name: str, drain_s: float | None, say: Say) -> None: ...


@asynccontextmanager
async def listening(state_dir: Path, changing: Changeable) -> AsyncIterator[None]:
    """Take wishes as long as the context lasts; one under way at its end is taken back."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await _answer(reader, writer, changing)
        finally:
            handlers.discard(task)
            writer.close()

    with _short_path(state_dir) as folder:
        path = f"{folder}/{_SOCKET}"
        (state_dir / _SOCKET).unlink(missing_ok=True)
        with _private():  # without an await: processes that start meanwhile would inherit it
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
        server = await asyncio.start_unix_server(handle, sock=listener, limit=_MAX_LINE_BYTES)
        try:
            yield
        finally:
            server.close()
            for task in list(handlers):
                task.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
            (state_dir / _SOCKET).unlink(missing_ok=True)


@contextmanager
def _short_path(state_dir: Path) -> Iterator[str]:
    """The folder by a path that a socket's address has room for (108 bytes, unix(7))."""
    descriptor = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _private() -> Iterator[None]:
    """What is made meanwhile is its user's alone."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changing: Changeable
) -> None:
    def tell(**answer: object) -> None:
        writer.write(json.dumps(answer).encode() + b"\n")

    with contextlib.suppress(ConnectionError):
        try:
            _check_caller(writer.get_extra_info("socket"))
            wish = await _wish(reader)
            if changing.is_busy:
                raise OverloadedError("another change of the mesh is under way; wait for its end")
            await _unless_gone(reader, _do(wish, changing, lambda text: tell(say=text)))
            tell(done=True)
        except OutriderError as error:
            tell(error={"reason": error.reason, "message": error.message})
        except ConnectionError:
            raise
        except OSError as error:
            # No room on the disk, no more processes.
            problem = f"the supervisor could not do it: {error}"
            tell(error={"reason": UnavailableError.reason, "message": problem})
        await writer.drain()


async def _wish(reader: asyncio.StreamReader) -> Any:
    """What a caller says. Raises ConfigError if that is no JSON, too long, or too late."""
    try:
        async with asyncio.timeout(_ASK_LIMIT_S):
            return json.loads(await reader.readline())
    except (ValueError, RecursionError, TimeoutError) as error:
        raise ConfigError("no JSON object on a line") from error


def _check_caller(connection: socket.socket) -> None:
    """Raises PermissionDeniedError for another user (SO_PEERCRED, unix(7)), whatever the folder's
    mode has become."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    if user not in _ALLOWED_ALWAYS and user != os.getuid():
        raise PermissionDeniedError("a mesh is told what to serve by its own user alone")


async def _unless_gone(reader: asyncio.StreamReader, work: Any) -> None:
    """Do it, but take it back if the caller goes away."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
            raise ConnectionResetError
        doing.result()
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
        await asyncio.gather(gone, doing, return_exceptions=True)


async def _do(wish: Any, changing: Changeable, say: Say) -> None:
    """Raises ConfigError for what is no wish, and what `Changing` raises."""
    if not isinstance(wish, Mapping):
        raise ConfigError("a wish is a JSON object")
    match wish.get("do"):
        case "add":
            definitions = wish.get("definitions", {})
            read_definitions(
                definitions, Place("the wish", lambda text: parse_source(text, {}).text)
            )
            await changing.add(served_model(wish.get("model")), definitions, say)
        case "remove":
            drain_s = wish.get("drain_s")
            if drain_s is not None and not isinstance(drain_s, int | float):
                raise ConfigError("drain_s is a number of seconds")
            await changing.remove(str(wish.get("name")), drain_s, say)
        case other:
            raise ConfigError(f"a mesh cannot {str(other)[:64]!r}; stop it and start it anew")


async def ask(state_dir: Path, wish: Mapping[str, object], say: Say) -> None:
    """Tell the supervisor of the mesh in a folder, and wait until it is done. Raises what it
    raised, and UnavailableError if it cannot be reached or ends."""
    gone = UnavailableError(f"the supervisor of {state_dir} does not answer; see outrider status")
    try:
        with _short_path(state_dir) as folder:
            path = f"{folder}/{_SOCKET}"
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
    except OSError as error:
        raise gone from error
    try:
        writer.write(json.dumps(wish).encode() + b"\n")
        await writer.drain()
        while line := await reader.readline():
            answer = json.loads(line)
            if "say" in answer:
                say(str(answer["say"]))
            elif "error" in answer:
                raise by_reason(answer["error"]["reason"])(answer["error"]["message"])
            else:
                return
    except (OSError, ValueError) as error:
        raise gone from error
    finally:
        writer.close()
    raise gone
