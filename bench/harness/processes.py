"""Child processes that last as long as a context."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from outrider.process import die_with_parent

_LINE_LIMIT_BYTES = 1 << 26


@contextlib.asynccontextmanager
async def child(
    *command: str,
    environ: Mapping[str, str] | None = None,
    silent: bool = False,
    merged: bool = False,
    cores: Collection[int] = (),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start `command` with pipes; `silent` throws away what it prints, `merged`
    has its errors, logs among them, in its output. It runs on these cores,
    without any on those of this process, and ends with it."""
    null = asyncio.subprocess.DEVNULL
    errors = asyncio.subprocess.STDOUT if merged else None

    def settle() -> None:
        die_with_parent()
        if cores:
            os.sched_setaffinity(0, cores)

    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=null if silent else asyncio.subprocess.PIPE,
        stderr=null if silent else errors,
        env={**os.environ, **(environ or {})},
        limit=_LINE_LIMIT_BYTES,
        preexec_fn=settle,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def read_json(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next line of its output. Raises RuntimeError if it ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended with exit status {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def write_json(process: asyncio.subprocess.Process, job: dict[str, Any]) -> None:
    """One line to its input."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
