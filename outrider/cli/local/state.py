"""Whether a mesh runs from a state folder, and its processes.

    mesh.lock    locked (flock(2)) by the supervisor while it lives; holds its process id
    mesh.json    the services, present while the mesh is ready
    starting     a line that says how far its start is, present until then

The kernel drops the lock when its holder dies, and the files count only while it is held. So
leftovers of a killed supervisor or a reboot are never taken for a mesh, and a process id that has
passed to another program is never sent a signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.access.client_key import state_folder
from outrider.durable_files import write_atomic
from outrider.errors import UnavailableError

_LOCK, _RECORD, _STARTING = "mesh.lock", "mesh.json", "starting"
_PROBES_S = 1.0
"""A process that checks holds the lock for an instant; one held longer is a mesh's."""
_POLL_S = 0.01

StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the configuration, logs and certificates of the mesh.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """A mesh that is up."""

    supervisor_pid: int
    host: str
    services: list[dict[str, Any]]
    models: list[dict[str, Any]]
    """The fields of each `ServedModel`, the default first."""

    def service(self, name: str) -> dict[str, Any]:
        """The row of one service. Raises UnavailableError."""
        for row in self.services:
            if row["name"] == name:
                return row
        raise UnavailableError(f"the mesh has no service named {name!r}")


def default_state_dir() -> Path:
    """$OUTRIDER_STATE_DIR, or the user's state folder (XDG Base Directory)."""
    return state_folder(os.environ)


def command_for(words: str, state_dir: Path) -> str:
    """A command line that finds the mesh of this folder, as a user types it."""
    if state_dir == default_state_dir().resolve():
        return f"outrider {words}"
    return f"outrider {words} --state-dir {shlex.quote(str(state_dir))}"


@contextlib.contextmanager
def holding(state_dir: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises UnavailableError if another process has it."""
    make_private(state_dir)
    descriptor = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, state_dir)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, state_dir: Path) -> None:
    limit = time.monotonic() + _PROBES_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > limit:
                raise already_up(state_dir) from None
        time.sleep(_POLL_S)


def already_up(state_dir: Path) -> UnavailableError:
    """Why no second mesh can run from a folder."""
    return UnavailableError(
        f"a mesh is already up in {state_dir}; to change which models it serves, stop it with "
        f"`{command_for('down', state_dir)}`, then start it with all of them: "
        f"`{command_for('up --model A --model B', state_dir)}`"
    )


def supervisor_pid(state_dir: Path) -> int | None:
    """Process id of the supervisor of the mesh in the folder, also while it starts and stops."""
    path = state_dir / _LOCK
    if not _is_held(path):
        return None
    text = path.read_text(encoding="ascii")
    return int(text) if text.isdecimal() else None


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def running_mesh(state_dir: Path) -> RunningMesh | None:
    """The mesh that is up in the folder; None without one, and while it starts or stops.

    Raises UnavailableError when its record is damaged.
    """
    pid = supervisor_pid(state_dir)
    mesh = None if pid is None else _recorded(state_dir)
    # Another's record is of a mesh that was killed before this one began to start.
    return mesh if mesh is not None and mesh.supervisor_pid == pid else None


def started_by(pid: int, state_dir: Path) -> RunningMesh | None:
    """The mesh in the folder, if this supervisor has it up; None before. A record that is damaged
    is of an earlier mesh: this one's appears whole."""
    try:
        mesh = running_mesh(state_dir)
    except UnavailableError:
        return None
    return mesh if mesh is not None and mesh.supervisor_pid == pid else None


def killed_mesh(state_dir: Path) -> RunningMesh | None:
    """The last mesh that was up in the folder, if it was not stopped but its supervisor killed, or
    the machine; None while another one is up, starts or stops."""
    if supervisor_pid(state_dir) is not None:
        return None
    try:
        return _recorded(state_dir)
    except UnavailableError:
        return None  # its record is damaged, and of no use


def left_running(killed: RunningMesh, state_dir: Path) -> list[int]:
    """Processes of a killed mesh that have not ended yet. The kernel signalled them when their
    supervisor died, and they let chats end first. Linux only: elsewhere the list is empty."""
    return [row["pid"] for row in killed.services if _is_told(row["pid"], state_dir / "config")]


def _is_told(pid: int, folder: Path) -> bool:
    """Whether a process was started with a file in that folder: others may have its number now."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def no_mesh(state_dir: Path) -> UnavailableError:
    """Why nothing can be asked of a folder's mesh, and what to do."""
    line = start_of(state_dir) if supervisor_pid(state_dir) is not None else ""
    if line:
        return UnavailableError(f"the mesh in {state_dir} is still starting: {line}")
    killed = killed_mesh(state_dir)
    why = f" (the last one was killed: process {killed.supervisor_pid})" if killed else ""
    start = command_for("up", state_dir)
    return UnavailableError(f"no mesh is up in {state_dir}{why}; start one with `{start}`")


def _recorded(state_dir: Path) -> RunningMesh | None:
    try:
        return RunningMesh(**json.loads((state_dir / _RECORD).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UnavailableError(
            f"{state_dir / _RECORD} is damaged ({error}); restart the mesh: "
            f"{command_for('down', state_dir)}, {command_for('up', state_dir)}"
        ) from error


def make_private(state_dir: Path) -> None:
    """Make sure that the folder exists and only this user can enter it: keys and logs are in it.
    Raises UnavailableError if others can, unless it is a mesh's, or empty, or Outrider's by its
    name."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not state_dir.stat().st_mode & 0o077:
        return
    is_mesh = (state_dir / _LOCK).exists()
    if not is_mesh and not _is_outriders(state_dir) and any(state_dir.iterdir()):
        raise UnavailableError(
            f"others may read {state_dir}, which is not empty and belongs to no mesh; name "
            f"another folder, or chmod 700 {state_dir}"
        )
    state_dir.chmod(0o700)


def _is_outriders(state_dir: Path) -> bool:
    """Whether the folder is `outrider` in the user's state folder. Services that were started one
    by one keep their files there, and create it by the user's umask."""
    environ = {name: text for name, text in os.environ.items() if name != "OUTRIDER_STATE_DIR"}
    return state_dir.resolve() == state_folder(environ).resolve()


def write_private(path: Path, text: str) -> None:
    """Write atomically, readable only for this user."""
    write_atomic(path, text.encode())


def record_start(state_dir: Path, line: str) -> None:
    """Record how far the mesh's start is; "": it has not begun."""
    write_atomic(state_dir / _STARTING, line.encode(), is_durable=False)


def start_of(state_dir: Path) -> str:
    """How far the start of the folder's mesh is; "" if none starts."""
    try:
        return (state_dir / _STARTING).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def publish(state_dir: Path, mesh: RunningMesh) -> None:
    """Record that the mesh is up."""
    write_private(state_dir / _RECORD, json.dumps(asdict(mesh), indent=2))
    (state_dir / _STARTING).unlink(missing_ok=True)


def withdraw(state_dir: Path) -> None:
    """Remove the records."""
    for name in (_RECORD, _STARTING):
        (state_dir / name).unlink(missing_ok=True)
