"""Prometheus's own judge of metrics and rules: Debian's promtool, as `tools/setup.sh dev` unpacks
it, or the machine's."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_PLACE = _ROOT / ".tools" / "prometheus" / "usr" / "bin" / "promtool"


async def complaints(*arguments: str, page: str = "") -> str:
    """All that `promtool ARGUMENTS` has to say of a page of metrics, or of the files among its
    arguments; empty where it is content."""
    done = await asyncio.to_thread(
        subprocess.run,
        (_binary(), *arguments),
        input=page.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    is_lint = arguments[:2] == ("check", "metrics")
    return done.stdout.decode() if done.returncode or is_lint else ""


def _binary() -> str:
    found = str(_PLACE) if os.access(_PLACE, os.X_OK) else shutil.which("promtool")
    if found is None:
        pytest.fail("there is no promtool: install prometheus, or run tools/setup.sh dev on Debian")
    return found
