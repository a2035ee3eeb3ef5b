"""Makes plausible mistakes in the source, one by one, and reports which of them the tests notice.

Each mutation of the lists beside this module is made in a copy of the tracked files, never in the
working tree, and the tests that it names are run there. They are run without it first: tests that
fail anyway catch nothing. The exit status is 1 unless every mutation is caught.

    python -m tools.mutations               all of them
    python -m tools.mutations --only NAME   this one, and others that are named so
    python -m tools.mutations --list        their names and promises
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.mutations.mutation import Mutation, MutationError, check_applicable, read_mutations
from tools.mutations.running import DEFAULT_LIMIT_S, Outcome, Result, run_mutations

_ROOT: Final = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the mutations that the arguments ask for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutations", description=_first_line())
    parser.add_argument("--list", action="store_true", help="names and promises, and run nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; repeatable")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at once")
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMIT_S, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        mutations = _chosen(read_mutations(), arguments.only)
        check_applicable(mutations, _ROOT)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.name:<34} {mutation.file:<52} {mutation.promise}")
        return 0
    begun = time.monotonic()
    results = run_mutations(
        mutations, _ROOT, num_jobs=max(1, arguments.jobs), limit_s=arguments.limit, report=_row
    )
    return _summary(results, time.monotonic() - begun)


def _chosen(mutations: Sequence[Mutation], names: Sequence[str] | None) -> Sequence[Mutation]:
    if names is None:
        return mutations
    unknown = set(names) - {mutation.name for mutation in mutations}
    if unknown:
        raise MutationError(f"there is no mutation {min(unknown)}: --list names all of them")
    return [mutation for mutation in mutations if mutation.name in names]


def _row(result: Result) -> None:
    mutation = result.mutation
    print(
        f"{result.outcome.value:<10} {result.seconds:>5.1f} s  {mutation.name:<34} {mutation.file}",
        flush=True,
    )


def _summary(results: Sequence[Result], seconds: float) -> int:
    missed = [result for result in results if result.outcome is not Outcome.CAUGHT]
    for result in missed:
        print(f"\n{result.outcome.value}: {result.mutation.name}, {result.mutation.promise}")
        print(result.output)
    counts = Counter(result.outcome for result in results)
    told = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    print(f"\n{len(results)} mutations in {seconds:.0f} s: {told}")
    return 1 if missed else 0


def _first_line() -> str:
    return (__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
