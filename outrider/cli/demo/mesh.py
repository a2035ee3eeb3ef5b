"""A mesh for a demo, in a temporary folder, so that no other mesh's chats are harmed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from outrider.children import python_module
from outrider.cli.local.preparing import fetched
from outrider.cli.local.start_line import start_line
from outrider.cli.local.state import command_for, running_mesh, start_of
from outrider.cli.local.supervisor import FAILED
from outrider.cli.model_choice import choose_all
from outrider.errors import UnavailableError

_POLL_S: Final = 0.1


def command(*arguments: str) -> list[str]:
    """`outrider` with these arguments, as a process of its own."""
    return list(python_module("outrider.cli.main", *arguments))


@contextlib.contextmanager
def kept_if_failed() -> Iterator[Path]:
    """A temporary folder for a mesh's state. If the block raises an error, which Ctrl-C is not, the
    folder stays, with its logs, and a line on standard error says where."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-demo-"))
    is_kept = False
    try:
        yield folder
    except Exception:
        is_kept = True
        print(
            f"outrider: the demo failed; its logs stay in {folder / 'logs'} "
            f"(`{command_for('logs', folder)}`)",
            file=sys.stderr,
            flush=True,
        )
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def own_mesh(model: str = "", arguments: Sequence[str] = ()) -> Iterator[Path]:
    """The state folder of a mesh that runs while the block lasts; kept as by `kept_if_failed`.
    `model` as for --model, "": the default; `arguments`: further ones for `outrider up`. Raises
    UnavailableError if it does not start, UnknownModelError, ModelStoreError."""
    # Here, where its progress is seen: what `up` prints is not.
    specs = choose_all([model]).specs
    fetched(specs, [spec.draft for spec in specs], {})
    if model:
        arguments = (*arguments, "--model", model)
    with kept_if_failed() as folder:
        _start(folder, arguments)
        try:
            yield folder
        finally:
            if running_mesh(folder) is not None:
                subprocess.run(
                    command("down", "--state-dir", str(folder)), stderr=subprocess.PIPE, check=False
                )


def _start(folder: Path, arguments: Sequence[str]) -> None:
    """Start a mesh and wait until it is up, showing how far it is. Raises UnavailableError."""
    shape = ("--detach", "--port", "0", "--http-port", "-1", "--state-dir", str(folder))
    with (
        start_line(Console(stderr=True, highlight=False, markup=False, soft_wrap=True)) as show,
        subprocess.Popen(
            command("up", *shape, *arguments), stderr=subprocess.PIPE, text=True
        ) as starting,
    ):
        said = None
        while said is None:
            try:
                _, said = starting.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                show(start_of(folder))
    if starting.returncode:
        raise UnavailableError(f"\n{said.rstrip()}".rpartition(f"\n{FAILED}")[2].strip())
