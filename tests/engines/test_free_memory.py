"""Free memory, as proc and the cgroups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engines.free_memory import FreeMemory, free_memory
from outrider.errors import ConfigError

MACHINE = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  600 kB\n"


class Host:
    """Files as the kernel shows them."""

    def __init__(self, root: Path, cgroup: str, meminfo: str = MACHINE) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "self/cgroup", cgroup)
        self.write(self.proc / "meminfo", meminfo)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def v2(self, group: str, limit: str, usage: int, inactive: int = 0) -> None:
        folder = self.cgroups / group
        self.write(folder / "memory.max", f"{limit}\n")
        self.write(folder / "memory.current", f"{usage}\n")
        self.write(folder / "memory.stat", f"anon 5\ninactive_file {inactive}\n")

    def v1(self, group: str, limit: int, usage: int, inactive: int = 0) -> None:
        folder = self.cgroups / "memory" / group
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        self.write(folder / "memory.usage_in_bytes", f"{usage}\n")
        stat = f"inactive_file 0\ntotal_inactive_file {inactive}\n"
        self.write(folder / "memory.stat", stat)

    def measure(self) -> FreeMemory:
        return free_memory(self.proc, self.cgroups)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/user.slice\n")
    assert host.measure() == FreeMemory(600 * 1024, "the machine's available memory")


def test_the_limit_of_cgroup_v2(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/a/b\n")
    host.v2("a/b", "500000", 200_000, 50_000)
    assert host.measure() == FreeMemory(350_000, "the cgroup v2 limit")


def test_a_group_above_may_be_the_tightest(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/a/b\n")
    host.v2("a/b", "max", 200_000)
    host.v2("a", "300000", 250_000)
    assert host.measure().num_bytes == 50_000


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n")
    host.v2("", "400000", 100_000)
    assert host.measure().num_bytes == 300_000


@pytest.mark.parametrize("group", ["docker/1234", ""])
def test_the_limit_of_cgroup_v1(tmp_path: Path, group: str) -> None:
    host = Host(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/docker/1234\n0::/\n")
    host.v1(group, 400_000, 300_000, 20_000)
    assert host.measure() == FreeMemory(120_000, "the cgroup v1 limit")


def test_the_numbers_that_mean_no_limit(tmp_path: Path) -> None:
    host = Host(tmp_path, "4:memory:/\n0::/\n")
    host.v1("", 9223372036854771712, 5)
    host.v2("", "max", 5)
    assert host.measure().num_bytes == 600 * 1024


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n")
    host.v2("", "1000", 5000)
    assert host.measure().num_bytes == 0


def test_where_nothing_is_known_the_operator_has_to_say(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n", meminfo="MemTotal: 5 kB\n")
    with pytest.raises(ConfigError, match="set kv_bytes"):
        host.measure()


def test_this_machine_has_some() -> None:
    assert free_memory().num_bytes > 1 << 20
