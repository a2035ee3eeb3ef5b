"""A mesh for a demo, in a temporary folder, so that no other mesh's chats are harmed."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from outrider.children import python_module
from outrider.cli.local.preparing import fetched
from outrider.cli.local.state import running_mesh
from outrider.cli.model_choice import choose_all
from outrider.errors import UnavailableError


def command(*arguments: str) -> list[str]:
    """`outrider` with these arguments, as a process of its own."""
    return list(python_module("outrider.cli.main", *arguments))


@contextlib.contextmanager
def own_mesh(model: str = "", arguments: Sequence[str] = ()) -> Iterator[Path]:
    """The state folder of a mesh that runs while the block lasts. `model` as for --model, "": the
    default; `arguments`: further ones for `outrider up`. Raises UnavailableError if it does not
    start, UnknownModelError, ModelStoreError."""
    # Here, where its progress is seen: what `up` prints is not.
    specs = choose_all([model]).specs
    fetched(specs, [spec.draft for spec in specs], {})
    if model:
        arguments = (*arguments, "--model", model)
    with tempfile.TemporaryDirectory(prefix="outrider-demo-") as folder:
        up = ("up", "--detach", "--port", "0", "--http-port", "-1", "--state-dir", folder)
        with Console(stderr=True).status("starting the mesh"):
            started = subprocess.run(
                command(*up, *arguments), stderr=subprocess.PIPE, text=True, check=False
            )
        if started.returncode:
            raise UnavailableError(f"the demo's mesh did not start:\n{started.stderr.rstrip()}")
        try:
            yield Path(folder)
        finally:
            if running_mesh(Path(folder)) is not None:
                subprocess.run(
                    command("down", "--state-dir", folder), stderr=subprocess.PIPE, check=False
                )
