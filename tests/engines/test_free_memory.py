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

    def v1(self, group: str, limit: str, usage: int, inactive: int = 0) -> None:
        folder = self.cgroups / "memory" / group
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        self.write(folder / "memory.usage_in_bytes", f"{usage}\n")
        stat = f"inactive_file 0\ntotal_inactive_file {inactive}\n"
        self.write(folder / "memory.stat", stat)

    def measure(self) -> FreeMemory:
        return free_memory(self.proc, self.cgroups)


ALL, V1, V2 = "the machine's available memory", "the cgroup v1 limit", "the cgroup v2 limit"
DOCKER = "5:cpu,cpuacct:/x\n4:memory:/docker/1234\n0::/\n"


@pytest.mark.parametrize(
    ("cgroup", "groups", "num_bytes", "source"),
    [
        pytest.param("0::/user.slice\n", [], 600 * 1024, ALL, id="no limits"),
        pytest.param("0::/a/b\n", [("v2", "a/b", "500000", 200_000, 50_000)], 350_000, V2, id="v2"),
        pytest.param(
            "0::/a/b\n",
            [("v2", "a/b", "max", 200_000, 0), ("v2", "a", "300000", 250_000, 0)],
            *(50_000, V2),
            id="a group above is the tightest",
        ),
        pytest.param("0::/\n", [("v2", "", "400000", 100_000, 0)], 300_000, V2, id="a container"),
        pytest.param(
            DOCKER, [("v1", "docker/1234", "400000", 300_000, 20_000)], 120_000, V1, id="v1"
        ),
        pytest.param(
            DOCKER, [("v1", "", "400000", 300_000, 20_000)], 120_000, V1, id="v1 in a container"
        ),
        pytest.param(
            "4:memory:/\n0::/\n",
            [("v1", "", "9223372036854771712", 5, 0), ("v2", "", "max", 5, 0)],
            *(600 * 1024, ALL),
            id="numbers that mean no limit",
        ),
        pytest.param("0::/\n", [("v2", "", "1000", 5000, 0)], 0, V2, id="over its limit"),
    ],
)
def test_what_is_free_is_the_least_that_anybody_leaves(
    cgroup: str,
    groups: list[tuple[str, str, str, int, int]],
    num_bytes: int,
    source: str,
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, cgroup)
    for version, *group in groups:
        getattr(host, version)(*group)
    assert host.measure() == FreeMemory(num_bytes, source)


def test_where_nothing_is_known_the_operator_has_to_say(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/\n", meminfo="MemTotal: 5 kB\n")
    with pytest.raises(ConfigError, match="set kv_bytes"):
        host.measure()


def test_this_machine_has_some() -> None:
    assert free_memory().num_bytes > 1 << 20
