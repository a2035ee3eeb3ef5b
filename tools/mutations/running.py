"""Runs tests on the source with a mistake in it, in copies of the working tree's tracked files."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from tools.mutations.mutation import Mutation

DEFAULT_LIMIT_S: Final = 180.0
_SHOWN_LINES: Final = 15

# The limit is ours: a test that pytest-timeout ends would look like one that failed.
_PYTEST: Final = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider")
_OPTIONS: Final = ("-o", "timeout=0")

_ItemT = TypeVar("_ItemT")
_FoundT = TypeVar("_FoundT")


class Outcome(Enum):
    """Result of running the tests on a mistake."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT caught"
    HUNG = "hung"
    """They took longer than the limit."""
    BROKEN = "broken"
    """They did not run: the mistake is not one that a program could have, or they fail without
    it."""


_OUTCOMES: Final = {0: Outcome.NOT_CAUGHT, 1: Outcome.CAUGHT}
"""Outcomes by pytest's exit status; every other status is BROKEN."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one mutation."""

    mutation: Mutation
    outcome: Outcome
    seconds: float
    output: str = ""
    """The end of pytest's output."""


@dataclass(frozen=True, slots=True)
class _Run:
    outcome: Outcome
    seconds: float
    output: str


def run_mutations(
    mutations: Sequence[Mutation],
    root: Path,
    *,
    num_jobs: int = 2,
    limit_s: float = DEFAULT_LIMIT_S,
    report: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """Run the tests of each mutation; returns the results in the order of the list. `report` gets
    each result at once. Mutations with the same tests run one after the other, once these tests
    have passed without a mutation."""
    by_tests: dict[tuple[str, ...], list[Mutation]] = {}
    for mutation in mutations:
        by_tests.setdefault(mutation.tests, []).append(mutation)

    def of_group(group: list[Mutation], copy: _Copy) -> dict[Mutation, Result]:
        before = _run(group[0].tests, copy.root, max(limit_s, DEFAULT_LIMIT_S))
        results: dict[Mutation, Result] = {}
        for mutation in group:
            run = _Run(
                Outcome.BROKEN, before.seconds, f"without it the tests fail\n{before.output}"
            )
            if before.outcome is Outcome.NOT_CAUGHT:
                with copy.changed(mutation):
                    run = _run(mutation.tests, copy.root, limit_s)
            result = Result(mutation, run.outcome, run.seconds, run.output)
            results[mutation] = result
            report(result)
        return results

    with _copies(root, num_jobs) as copies:
        groups = list(_each(list(by_tests.values()), of_group, copies))
    found = {mutation: result for group in groups for mutation, result in group.items()}
    return [found[mutation] for mutation in mutations]


class _Copy:
    """The tracked files of a working tree, as they are now, in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._num_changes = 0

    @contextmanager
    def changed(self, mutation: Mutation) -> Iterator[None]:
        """Has the mistake in it meanwhile."""
        file = self.root / mutation.file
        source, before = file.read_text(), file.stat()
        self._num_changes += 1
        try:
            file.write_text(mutation.applied(source))
            # Compiled modules are known by the second and the size of their source: both may be
            # those of another mutation of the file.
            at = before.st_mtime + self._num_changes
            os.utime(file, (at, at))
            yield
        finally:
            file.write_text(source)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def _copies(root: Path, count: int) -> Iterator[queue.SimpleQueue[_Copy]]:
    command = ["git", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    names = [name for name in os.fsdecode(listed).split("\0") if name and (root / name).is_file()]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        made = queue.SimpleQueue[_Copy]()
        for number in range(count):
            copy = Path(folder, str(number)).resolve()
            for name in names:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name)
            made.put(_Copy(copy))
        yield made


def _each(
    items: Iterable[_ItemT],
    work: Callable[[_ItemT, _Copy], _FoundT],
    copies: queue.SimpleQueue[_Copy],
) -> Iterator[_FoundT]:
    def in_a_copy(item: _ItemT) -> _FoundT:
        copy = copies.get()
        try:
            return work(item, copy)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(copies.qsize()) as pool:
        try:
            yield from pool.map(in_a_copy, items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _run(tests: Sequence[str], root: Path, limit_s: float) -> _Run:
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *_PYTEST, *_OPTIONS, *tests],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        outcome = _OUTCOMES.get(process.returncode, Outcome.BROKEN)
    except subprocess.TimeoutExpired:
        output, outcome = f"no end within {limit_s:g} s", Outcome.HUNG
    finally:
        _kill(process)
    shown = "\n".join(output.splitlines()[-_SHOWN_LINES:])
    return _Run(outcome, time.monotonic() - begun, shown)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill pytest with all processes that its tests started and left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
