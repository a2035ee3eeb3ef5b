"""Regenerates the tables of `README.md` and `docs/figures.md` from `bench/results/*.json`.

A block begins with `<!-- bench:NAME -->` and ends with `<!-- /bench:NAME -->`; what stands
between is replaced by the tables of that bench's last full run. `NAME:1` has the first of them
alone. `--check` changes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness.figures import RESULTS, Table

_COMMANDS = {
    "calls": ("bench.scale.calls",),
    "frontier": ("bench.wan.frontier",),
    "priorities": ("bench.arrivals.priorities",),
    "routing": ("bench.peers.routing",),
    "soak_virtual": ("bench.soak", "--virtual"),
    "soak_streams": ("bench.soak", "--streams", "1000"),
    "tokenizer_bulk": ("bench.tokenizer.bulk",),
    "tokenizer_equality": ("bench.tokenizer.equality",),
    "tokenizer_service": ("bench.tokenizer.service",),
}
"""Of records that are not called after a module."""
_ROOT = Path(__file__).parents[2]
PAGES = (_ROOT / "README.md", _ROOT / "docs" / "figures.md")
_BLOCK = re.compile(r"(<!-- bench:([a-z_]+)(?::(\d+))? -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)


def command_of(name: str) -> tuple[str, ...]:
    """Module and flags of the bench that makes the record of this name."""
    return _COMMANDS.get(name, (f"bench.{name}",))


def shown(pages: Sequence[str]) -> list[str]:
    """Names of the benches whose tables the pages show, each once, in order."""
    return list(dict.fromkeys(block[2] for page in pages for block in _BLOCK.finditer(page)))


def regenerated(text: str, results: Path) -> str:
    """`text` with every block made anew."""
    return _BLOCK.sub(
        lambda block: block[1] + _section(results / f"{block[2]}.json", block[3]) + block[4], text
    )


def rewrite(results: Path = RESULTS) -> None:
    """Make all pages anew."""
    for page in PAGES:
        page.write_text(regenerated(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def _section(path: Path, number: str | None) -> str:
    if not path.exists():
        return f"Not recorded yet: `python -m {' '.join(command_of(path.stem))}`.\n"
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record["machine"]
    parts = []
    for row in record["tables"] if number is None else [record["tables"][int(number) - 1]]:
        table = Table(row["title"], tuple(row["columns"]), [tuple(cells) for cells in row["rows"]])
        parts.append(f"**{table.title}**\n\n{table.markdown()}\n")
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    if "loop_us" in machine:
        where += f", loop {machine['loop_us']:.0f} us"
    parts.append(f"<sub>`{record['command']}`, {machine['date']}, {where}</sub>\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.harness.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether all is up to date")
    if parser.parse_args().check:
        pages = [page.read_text(encoding="utf-8") for page in PAGES]
        return int(any(regenerated(page, RESULTS) != page for page in pages))
    rewrite()
    return 0


if __name__ == "__main__":
    sys.exit(main())
