"""Cores and CPU time, of this process and of one started here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from bench.wan.machines.cpu import cpu_s, pin, split_cores, tree

WAITS = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
print("up", flush=True)
"""


def test_region_and_edge_share_out_the_cores() -> None:
    region, edge = split_cores()
    mine = os.sched_getaffinity(0)
    assert region | edge == mine
    assert not region & edge or len(mine) == 1


def test_every_thread_of_a_process_is_pinned() -> None:
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        assert process.pid in set(tree(os.getpid()))
        pin(process.pid, {core})
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        assert len(threads) == 2
        assert all(os.sched_getaffinity(thread) == {core} for thread in threads)
        process.stdin.close()
    assert cpu_s(process.pid) == 0.0, "a process that is gone has used none that is seen"


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
