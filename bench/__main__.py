"""Runs every bench whose tables the README or docs/figures.md shows, and regenerates both."""

from __future__ import annotations

import argparse
import subprocess
import sys

from bench.harness.readme import PAGES, rewrite, shown

COMMANDS = {
    "calls": ("bench.scale.calls",),
    "frontier": ("bench.wan.frontier",),
    "routing": ("bench.peers.routing",),
    "soak_virtual": ("bench.soak", "--virtual"),
    "soak_streams": ("bench.soak", "--streams", "1000"),
    "tokenizer_service": ("bench.tokenizer.service",),
}
"""Of records that are not called after a module."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="quick runs; the tables stay")
    flags = ["--quick"] if parser.parse_args().quick else []
    failed = []
    for name in shown([page.read_text(encoding="utf-8") for page in PAGES]):
        print(f"=== bench.{name}", flush=True)
        command = COMMANDS.get(name, (f"bench.{name}",))
        if subprocess.run([sys.executable, "-m", *command, *flags]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    elif not flags:
        rewrite()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
