"""Runs of a simulation, several at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: TID251 - spawned
from multiprocessing import get_context  # noqa: TID251 - spawn does not fork
from typing import TypeVar

CaseT = TypeVar("CaseT")
ResultT = TypeVar("ResultT")


def run_all(
    run_one: Callable[[CaseT], ResultT], cases: Sequence[CaseT], jobs: int
) -> dict[CaseT, ResultT]:
    """Every case once, `jobs` at a time in processes of their own. Says on stderr how many are
    done."""
    begin = time.monotonic()
    found: dict[CaseT, ResultT] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_one, case): case for case in cases}
        for future in as_completed(running):
            found[running[future]] = future.result()
            took_s = time.monotonic() - begin
            print(f"{len(found)} of {len(cases)} runs after {took_s:.0f} s", file=sys.stderr)
    return found
