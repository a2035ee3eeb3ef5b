"""Pages of a mapped file are given back and can be read again."""

from __future__ import annotations

import mmap
from pathlib import Path

from outrider.engines.openvino.mapped_file import give_back_pages

SIZE = 8 << 20


def resident(path: Path) -> int:
    """Bytes of the file that this process has in memory (proc(5), smaps)."""
    found = 0
    mine = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            mine = line.endswith(str(path))
        elif mine and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_pages_are_given_back_and_come_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert data[::4096] == path.read_bytes()[::4096]
        assert resident(path) == SIZE
        assert give_back_pages(path) == SIZE
        assert resident(path) == 0
        assert data[SIZE - 256 :] == bytes(range(256))


def test_what_can_be_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        data[5] = 7
        assert give_back_pages(path) == 0
        assert data[5] == 7


def test_a_file_that_is_not_mapped(tmp_path: Path) -> None:
    assert give_back_pages(tmp_path / "none.bin") == 0
