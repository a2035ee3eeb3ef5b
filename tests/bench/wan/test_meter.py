"""Cores and CPU time, of this process and of one started here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from bench.wan.measure import cpu_s, tree
from bench.wan.testbed import split_cores


def test_region_and_edge_share_out_the_cores() -> None:
    region, edge = split_cores()
    mine = os.sched_getaffinity(0)
    assert region | edge == mine
    assert not region & edge or len(mine) == 1


def test_a_process_that_is_gone_has_used_none_that_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.pid in set(tree(os.getpid()))
    assert cpu_s(process.pid) == 0.0


def test_cpu_time_counts_the_work_of_all_threads() -> None:
    before = cpu_s(os.getpid())
    enough = before + 0.1

    def work() -> None:
        while cpu_s(os.getpid()) < enough:
            sum(range(10_000))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert cpu_s(os.getpid()) >= enough
