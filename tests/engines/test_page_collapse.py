"""Memory in use goes into large pages, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engines.huge_pages import VARIABLE
from outrider.engines.page_collapse import Mapping, mappings

SMAPS = """\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                8192 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
7f0001000000-7f0001800000 r--p 00000000 fe:00 1234                       /lib/a file
Rss:                8192 kB
AnonHugePages:         0 kB
VmFlags: rd mr mw me
"""
MB = 1 << 20


def test_mappings_are_read() -> None:
    memory, file = mappings(SMAPS.splitlines())
    assert memory == Mapping(0x7F0000000000, 0x7F0000800000, True, 8 * MB, 2 * MB)
    assert memory.is_worth_it
    assert not file.is_private_memory and not file.is_worth_it


@pytest.mark.parametrize(
    ("size", "resident", "huge", "expected"),
    [
        (64, 64, 0, True),
        (64, 60, 0, True),
        (64, 10, 0, False),
        (64, 64, 64, False),
        (2, 2, 0, False),
    ],
)
def test_what_is_used_in_full_and_in_small_pages_is_worth_it(
    size: int, resident: int, huge: int, expected: bool
) -> None:
    it = Mapping(0, size * MB, True, resident * MB, huge * MB)
    assert it.is_worth_it is expected


USES = """
import mmap
from outrider.engines.page_collapse import collapse_pages
block = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(block), 4096):
    block[at] = at // 4096 % 251
print(collapse_pages() >= 60 << 20)
print(all(block[at] == at // 4096 % 251 for at in range(0, len(block), 4096)))
"""


def test_what_is_there_stays_as_it_is() -> None:
    run = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]


def test_who_decided_against_large_pages_gets_none() -> None:
    run = subprocess.run(
        [sys.executable, "-c", USES], env={VARIABLE: "", "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False", "True"]
