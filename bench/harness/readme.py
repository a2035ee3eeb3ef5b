"""Regenerates the tables of `README.md`, `docs/figures.md` and `docs/figures/*.md`, and single
figures of `docs/sources.md`, from `bench/results/*.json`.

A block begins with `<!-- bench:NAME -->` and ends with `<!-- /bench:NAME -->`; what stands between
is replaced by the tables of that bench's last run, and by how many of the files that it measures
had changed since when the page was made. `NAME:1` has the first table alone, without that count.
A single figure within a sentence or a cell stands between `<!-- figure NAME:2:ROW:COLUMN -->` and
`<!-- /figure -->`: of the second table, the first row whose cells, joined by " / ", begin with ROW,
and the column of that title.
`--check` changes nothing; it lists the records of which something has changed since, and fails only
if a page or chart is not what its record says.
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
from bench.harness.record import RESULTS, changes, load
from bench.harness.tables import Table, show

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "figures.md",
    ROOT / "docs" / "sources.md",
    *sorted((ROOT / "docs" / "figures").glob("*.md")),
)
_MAX_OPEN_ROWS = 60
"""Rows of a table above which it is shown folded up."""
_BLOCK = re.compile(r"(<!-- bench:([a-z_]+)(?::(\d+))? -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)
_FIGURE = re.compile(
    r"(<!-- figure ([a-z_]+):(\d+):([^:>]+):([^>]+?) -->).*?(<!-- /figure -->)", re.DOTALL
)
_CHANGED = re.compile(r"; changed since: \d+ of \d+ files in what is measured")


def shown(pages: Sequence[str]) -> list[str]:
    """Names of the benches whose tables the pages show, each once, in order."""
    return list(dict.fromkeys(block[2] for page in pages for block in _BLOCK.finditer(page)))


def regenerated(text: str, results: Path, root: Path = ROOT) -> str:
    """`text` with every block and every single figure made anew."""
    text = _BLOCK.sub(
        lambda block: block[1] + _section(block[2], block[3], results, root) + block[4], text
    )
    return _FIGURE.sub(
        lambda it: it[1] + _figure(it[2], it[3], it[4], it[5], results) + it[6], text
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
    """Reasons for `--check` to fail, one line each: pages and charts that differ from the records.
    Changes of the measured files since a record are not among them: any commit may change them."""
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if _CHANGED.sub("", regenerated(text, results, root)) != _CHANGED.sub("", text):
            found.append(f"{page.name}: out of date; `python -m bench.harness.readme` rewrites it")
    found += [
        f"{name}.svg: not drawn from the record; `python -m bench.harness.charts` draws it"
        for name in outdated(results, charts)
    ]
    return found


def remarks(results: Path = RESULTS, pages: Sequence[Path] = PAGES, root: Path = ROOT) -> list[str]:
    """Remarks of `--check` that do not make it fail, one line each: records that are missing, and
    records of which measured files have changed; each with the command that makes it anew."""
    found = []
    for name in shown([page.read_text(encoding="utf-8") for page in pages]):
        command = f"python -m {' '.join(bench_of(name).command())}"
        record = load(name, results)
        if record is None:
            found.append(f"{name}: not recorded; `{command}` records it")
        elif since := _changed_since(record, root):
            found.append(f"{name}: {_made_at(record)}{since}; `{command}` renews it")
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
    made = f"{machine['date']}, {_machine(machine)}, {_made_at(record)}"
    since = _changed_since(record, root) if number is None else ""
    parts.append(f"<sub>`{record['command']}`, {made}{since}</sub>\n")
    return "\n".join(parts)


def _figure(name: str, number: str, row: str, column: str, results: Path) -> str:
    """Raises LookupError if the record has no such cell: the page has to name another one."""
    record = load(name, results)
    if record is None:
        return "not recorded yet"
    table = record["tables"][int(number) - 1]
    found = [it for it in table["rows"] if " / ".join(map(show, it)).startswith(row)]
    if not found or column not in table["columns"]:
        raise LookupError(f"{name}, table {number}: there is no cell {row!r}, {column!r}")
    return show(found[0][table["columns"].index(column)])


def _machine(facts: Mapping[str, Any]) -> str:
    """The small print about the machine; older records say less."""
    told = [facts["cpu"]]
    if facts.get("cpu_family"):
        told[0] += f" (family {facts['cpu_family']}, model {facts['cpu_model']})"
        told += [" ".join(facts["cpu_flags"])] if facts["cpu_flags"] else []
    if facts.get("precision"):
        told.append(f"engine in {facts['precision']}")
    told += [f"{facts['cores']} cores", f"Python {facts['python']}"]
    if "loop_us" in facts:
        told.append(f"loop {facts['loop_us']:.0f} us")
    return ", ".join(told)


def _shown(table: Table) -> str:
    """The table with its title; a long one is folded up until its title is clicked."""
    if len(table.rows) <= _MAX_OPEN_ROWS:
        return f"**{table.title}**\n\n{table.markdown()}\n"
    summary = f"<summary><b>{table.title}</b> ({len(table.rows)} rows)</summary>"
    return f"<details>{summary}\n\n{table.markdown()}\n\n</details>\n"


def _made_at(record: Mapping[str, Any]) -> str:
    return f"recorded at commit {Commit(**record.get('commit', {'id': '', 'dirty': False}))}"


def _changed_since(record: Mapping[str, Any], root: Path) -> str:
    """Text on the measured files that have changed; empty if none has, or nothing is known."""
    since = changes(record, root)
    if since is None or not since.num_changed:
        return ""
    return f"; changed since: {since.num_changed} of {since.num_files} files in what is measured"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.harness.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether all is up to date")
    if not parser.parse_args().check:
        rewrite()
        return 0
    found = complaints()
    print("\n".join([*remarks(), *(found or ["pages and charts show what is recorded"])]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
