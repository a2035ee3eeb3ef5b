"""Runs every bench that the README shows, one after the other, and regenerates its tables."""

from __future__ import annotations

import argparse
import subprocess
import sys

from bench.harness.figures import RESULTS
from bench.harness.readme import README, regenerated, shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="quick runs; the README stays")
    flags = ["--quick"] if parser.parse_args().quick else []
    text = README.read_text(encoding="utf-8")
    failed = []
    for name in shown(text):
        print(f"=== bench.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}", *flags]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    elif not flags:
        README.write_text(regenerated(text, RESULTS), encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
