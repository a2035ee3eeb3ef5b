"""Child processes that last as long as a context."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final

from outrider.children import PipedProcess, start_piped

_LINE_LIMIT_BYTES: Final = 1 << 26


@contextlib.asynccontextmanager
async def child(
    *command: str,
    environ: Mapping[str, str] | None = None,
    silent: bool = False,
    merged: bool = False,
    cores: Collection[int] = (),
) -> AsyncIterator[PipedProcess]:
    """Start `command` with pipes; `silent` throws away what it prints, `merged`
    has its errors, logs among them, in its output. It runs on these cores,
    without any on those of this process, and ends with it."""
    errors = subprocess.STDOUT if merged else None
    process = await start_piped(
        command,
        stdout=subprocess.DEVNULL if silent else subprocess.PIPE,
        stderr=subprocess.DEVNULL if silent else errors,
        env={**os.environ, **(environ or {})},
        ends_with_parent=signal.SIGTERM,
        cores=cores,
        limit_bytes=_LINE_LIMIT_BYTES,
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.finish()


async def read_json(process: PipedProcess) -> dict[str, Any]:
    """The next line of its output. Raises RuntimeError if it ended."""
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended with exit status {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def write_json(process: PipedProcess, job: dict[str, Any]) -> None:
    """One line to its input."""
    process.stdin.write(json.dumps(job).encode() + b"\n")
