"""`python -m tests.fuzz [TARGET ...] --minutes 5`: each target for so long; inputs that break a
parser are written to the current folder, and the exit status is 1."""

from __future__ import annotations

import argparse
import sys
import time
from hashlib import sha256
from pathlib import Path

from tests.fuzz.mutating import Mutator
from tests.fuzz.running import Broken, feed
from tests.fuzz.targets import Target, targets

_SAY_S = 5.0


def fuzz(target: Target, seconds: float, seed: int) -> list[Broken]:
    """Damaged input for so long; at most one finding of a kind."""
    mutator, found = Mutator(target.seeds, seed), dict[str, Broken]()
    end = time.monotonic() + seconds
    count, say_at = 0, time.monotonic() + _SAY_S
    while time.monotonic() < end:
        count += 1
        if (broken := feed(target, mutator)) is not None:
            found.setdefault(broken.kind, broken)
        if time.monotonic() >= say_at:
            say_at += _SAY_S
            left = end - time.monotonic()
            print(
                f"\r{target.name}: {count:,} inputs, {mutator.num_answers} answers, "
                f"{len(found)} findings, {left:.0f} s left ",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
    print(f"\r{target.name}: {count:,} inputs, {mutator.num_answers} answers, "
          f"{len(found)} findings", file=sys.stderr)  # fmt: skip
    return list(found.values())


def main() -> int:
    known = {target.name: target for target in targets()}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - known.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    num_found = 0
    for name in arguments.targets or known:
        for broken in fuzz(known[name], arguments.minutes * 60, arguments.seed):
            num_found += 1
            path = Path(f"fuzz-{name}-{sha256(broken.data).hexdigest()[:12]}.bin")
            path.write_bytes(broken.data)
            print(f"{name}: {broken.what}; the input is in {path}")
    return int(bool(num_found))


if __name__ == "__main__":
    raise SystemExit(main())
