"""Runs benchmarks one after the other, regenerates the tables of README.md and docs/figures and
draws the charts.

`python -m bench` runs every benchmark whose tables the pages show; `python -m bench core` the most
telling ones at a smaller size, within an hour on two cores. Both begin with how long they will
take, install the other systems that are missing, skip what is recorded already from the same
sources, and go on when one fails.
"""

from __future__ import annotations

import argparse
import sys

from bench.harness import charts
from bench.harness.benches import CORE, MAX_CORE_MINUTES, bench_of
from bench.harness.readme import PAGES, rewrite, shown
from bench.harness.series import Result, Series, Size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("which", nargs="?", choices=("all", "core"), default="all")
    parser.add_argument("--quick", action="store_true", help="quick runs; nothing is recorded")
    parser.add_argument("--fresh", action="store_true", help="run again what is recorded already")
    arguments = parser.parse_args()
    core = arguments.which == "core"
    names = shown([page.read_text(encoding="utf-8") for page in PAGES])
    benches = CORE if core else [bench_of(name) for name in names]
    series = Series(benches, Size(core, arguments.quick), fresh=arguments.fresh)
    result = series.run()
    _tell(result, core=core)
    if not arguments.quick:
        rewrite()
        if charts.is_installed():
            charts.draw_all()
        else:
            print(charts.INSTALL, file=sys.stderr)
    return int(bool(result.failed))


def _tell(result: Result, *, core: bool) -> None:
    took = result.measured_s / 60
    limit = f" of at most {MAX_CORE_MINUTES:.0f}" if core else ""
    print(f"measured for {took:.1f} min{limit}", file=sys.stderr)
    for title, names in (
        ("failed", result.failed),
        ("left out, not installed", result.not_installed),
    ):
        if names:
            print(f"{title}: {', '.join(dict.fromkeys(names))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
