"""The web pages' pure modules, in Node: the one that Playwright brings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda it: it.stem)
def test_modules(file: Path) -> None:
    node, _ = compute_driver_executable()
    done = subprocess.run(
        (node, "--test", "--test-reporter=spec", file), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 0" not in done.stdout
