"""Processes with weights ask for large pages, unless somebody decided otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outrider.engines.huge_pages import ASKED_FOR, VARIABLE, with_huge_pages

FLAGS = """
import pathlib
block = bytearray(1 << 26)
regions = pathlib.Path("/proc/self/smaps").read_text().split("VmFlags:")
print(any(" hg" in region.splitlines()[0] for region in regions[1:]))
"""


@pytest.mark.parametrize("own", [None, "", "glibc.malloc.check=0"])
def test_what_is_set_already_wins(own: str | None) -> None:
    given = {"A": "b"} if own is None else {"A": "b", VARIABLE: own}
    wanted = ASKED_FOR if own is None else own
    assert with_huge_pages(given) == {"A": "b", VARIABLE: wanted}


@pytest.mark.parametrize("own", [{}, {VARIABLE: ""}])
def test_glibc_asks_the_kernel_for_them(own: dict[str, str]) -> None:
    """proc(5): a region advised so has the flag hg."""
    done = subprocess.run(
        [sys.executable, "-c", FLAGS],
        env=with_huge_pages(own), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(not own)
