"""Runs every bench whose tables the README or docs/figures.md shows, and regenerates both."""

from __future__ import annotations

import argparse
import subprocess
import sys

from bench.harness.readme import PAGES, command_of, rewrite, shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="quick runs; the tables stay")
    flags = ["--quick"] if parser.parse_args().quick else []
    failed = []
    for name in shown([page.read_text(encoding="utf-8") for page in PAGES]):
        print(f"=== bench.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", *command_of(name), *flags]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    elif not flags:
        rewrite()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
