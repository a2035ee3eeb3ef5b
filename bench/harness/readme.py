"""Regenerates the tables of `README.md` and `docs/figures.md` from `bench/results/*.json`.

A block begins with `<!-- bench:NAME -->` and ends with `<!-- /bench:NAME -->`; what stands between
is replaced by the tables of that bench's last run. `NAME:1` has the first of them alone. `--check`
changes nothing; it fails if a page or chart is out of date, or shows a record that is stale: made
from other sources than those that are there now (`bench.harness.benches` says which count).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.benches import bench_of
from bench.harness.charts import FOLDER as CHARTS
from bench.harness.charts import outdated
from bench.harness.provenance import ROOT, Commit
from bench.harness.record import RESULTS, is_stale, load
from bench.harness.tables import Table

PAGES = (ROOT / "README.md", ROOT / "docs" / "figures.md")
_MAX_OPEN_ROWS = 60
"""Rows of a table above which it is shown folded up."""
_BLOCK = re.compile(r"(<!-- bench:([a-z_]+)(?::(\d+))? -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)


def shown(pages: Sequence[str]) -> list[str]:
    """Names of the benches whose tables the pages show, each once, in order."""
    return list(dict.fromkeys(block[2] for page in pages for block in _BLOCK.finditer(page)))


def regenerated(text: str, results: Path, root: Path = ROOT) -> str:
    """`text` with every block made anew."""
    return _BLOCK.sub(
        lambda block: block[1] + _section(block[2], block[3], results, root) + block[4], text
    )


def rewrite(results: Path = RESULTS, pages: Sequence[Path] = PAGES) -> None:
    """Make all pages anew."""
    for page in pages:
        page.write_text(regenerated(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def complaints(
    results: Path = RESULTS,
    pages: Sequence[Path] = PAGES,
    root: Path = ROOT,
    charts: Path = CHARTS,
) -> list[str]:
    """What `--check` finds wrong, one line each: stale records with the command that renews them,
    and pages and charts that are not what the records say."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    found = []
    for name in shown(list(texts.values())):
        command = f"python -m {' '.join(bench_of(name).command())}"
        record = load(name, results)
        if record is None:
            found.append(f"{name}: not recorded; `{command}` records it")
        elif is_stale(record, root):
            found.append(f"{name}: stale, {_made_at(record)}; `{command}` renews it")
    for page, text in texts.items():
        if regenerated(text, results, root) != text:
            found.append(f"{page.name}: out of date; `python -m bench.harness.readme` rewrites it")
    found += [
        f"{name}.svg: not drawn from the record; `python -m bench.harness.charts` draws it"
        for name in outdated(results, charts)
    ]
    return found


def _section(name: str, number: str | None, results: Path, root: Path) -> str:
    record = load(name, results)
    if record is None:
        return f"Not recorded yet: `python -m {' '.join(bench_of(name).command())}`.\n"
    machine = record["machine"]
    parts = []
    for row in record["tables"] if number is None else [record["tables"][int(number) - 1]]:
        rows = [tuple(cells) for cells in row["rows"]]
        table = Table(row["title"], tuple(row["columns"]), rows, row.get("notes", []))
        parts.append(_shown(table))
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    if "loop_us" in machine:
        where += f", loop {machine['loop_us']:.0f} us"
    stale = ", stale" if is_stale(record, root) else ""
    made = f"{machine['date']}, {where}, {_made_at(record)}{stale}"
    parts.append(f"<sub>`{record['command']}`, {made}</sub>\n")
    return "\n".join(parts)


def _shown(table: Table) -> str:
    """The table with its title; a long one is folded up until its title is clicked."""
    if len(table.rows) <= _MAX_OPEN_ROWS:
        return f"**{table.title}**\n\n{table.markdown()}\n"
    summary = f"<summary><b>{table.title}</b> ({len(table.rows)} rows)</summary>"
    return f"<details>{summary}\n\n{table.markdown()}\n\n</details>\n"


def _made_at(record: Mapping[str, Any]) -> str:
    return f"recorded at commit {Commit(**record.get('commit', {'id': '', 'dirty': False}))}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.harness.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether all is up to date")
    if not parser.parse_args().check:
        rewrite()
        return 0
    found = complaints()
    print("\n".join(found) or "every record shown is fresh, and pages and charts show them")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
