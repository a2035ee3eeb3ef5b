"""Models of every kind that is claimed: starts, memory, speed, exactness.

Replicas are started as `outrider up` starts them, with a KV pool that is next to empty when memory
is read. Their replies are compared with the reference's. Speeds are the engine's alone, of one
session on one thread, variants in turn. Models larger than the default one come from the package
index (bench.harness.larger_models); where they cannot be had, the table says so. `--quick` leaves
out the largest one and some of the tiny ones, and takes the speed of the first alone.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from bench.harness import Run, parser, start
from bench.models import subjects, tables
from bench.models.measuring import FULL, QUICK, Measured, measure


async def _measure(run: Run, work: Path) -> bool:
    known = await asyncio.to_thread(subjects.gather, work, quick=run.quick)
    size = QUICK if run.quick else FULL
    found: list[Measured] = []
    for subject in known.models:
        print(f"{subject.spec.name} ({subject.what})", file=sys.stderr, flush=True)
        found.append(await measure(subject, known.store, size))
    tables.report(run, found, known.missing)
    return all(one.exact for one in found)


def main() -> int:
    run = start("models", parser("models", __doc__ or "").parse_args())
    run.setting("engine", threads=1)
    with tempfile.TemporaryDirectory(prefix="outrider-models-") as work:
        good = asyncio.run(_measure(run, Path(work)))
    run.finish()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
