"""Prometheus's own judge of metrics and rules: Debian's promtool, as `tools/setup.sh dev` unpacks
it, or the machine's."""

from __future__ import annotations

import asyncio
import subprocess

from bench.harness.prometheus import program


async def complaints(*arguments: str, page: str = "") -> str:
    """All that `promtool ARGUMENTS` has to say of a page of metrics, or of the files among its
    arguments; empty where it is content."""
    done = await asyncio.to_thread(
        subprocess.run,
        (str(program("promtool")), *arguments),
        input=page.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    is_lint = arguments[:2] == ("check", "metrics")
    return done.stdout.decode() if done.returncode or is_lint else ""
