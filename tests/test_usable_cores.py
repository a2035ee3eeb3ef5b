"""Cores that a process may use, as its cgroups tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from outrider.usable_cores import usable_cores

ALL = len(os.sched_getaffinity(0))
PAIR = "cpu,cpuacct"


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        pytest.param("", {}, ALL, id="no cgroups"),
        pytest.param("0::/a\n", {"a/cpu.max": "max 100000"}, ALL, id="no quota"),
        pytest.param("0::/a\n", {"a/cpu.max": "100000 100000"}, 1, id="one core"),
        pytest.param("0::/a\n", {"a/cpu.max": "50000 100000"}, 1, id="half of one"),
        pytest.param("0::/\n", {"cpu.max": "190000 100000"}, 1, id="whole cores of a container"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "100000 100000"},
            1,
            id="a group above",
        ),
        pytest.param("0::/a\n", {"a/cpu.max": "90000000 100000"}, ALL, id="more than there are"),
        pytest.param(
            f"4:memory:/x\n5:{PAIR}:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"},
            1,
            id="v1",
        ),
        pytest.param(
            f"5:{PAIR}:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"},
            ALL,
            id="v1 without a quota",
        ),
    ],
)
def test_cores_are_those_of_the_affinity_within_every_quota(
    cgroup: str, files: Mapping[str, str], cores: int, tmp_path: Path
) -> None:
    for name, text in {
        "proc/self/cgroup": cgroup,
        **{f"cgroup/{n}": t for n, t in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cores(tmp_path / "proc", tmp_path / "cgroup") == cores


def test_this_process_has_a_core() -> None:
    assert 1 <= usable_cores() <= ALL
