"""Regenerates the README's tables from `bench/results/*.json`.

A block begins with `<!-- bench:NAME -->` and ends with `<!-- /bench:NAME -->`; what stands
between is replaced by the tables of that bench's last full run. `--check` changes nothing and
fails if the README is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from bench.harness.figures import RESULTS, Table

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"(<!-- bench:([a-z_]+) -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)


def shown(text: str) -> list[str]:
    """Names of the benches whose tables `text` shows, in order."""
    return [block[2] for block in _BLOCK.finditer(text)]


def regenerated(text: str, results: Path) -> str:
    """`text` with every block made anew."""
    return _BLOCK.sub(
        lambda block: block[1] + _section(results / f"{block[2]}.json") + block[3], text
    )


def _section(path: Path) -> str:
    if not path.exists():
        return f"Not recorded yet: `python -m bench.{path.stem}`.\n"
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record["machine"]
    parts = []
    for row in record["tables"]:
        table = Table(row["title"], tuple(row["columns"]), [tuple(cells) for cells in row["rows"]])
        parts.append(f"**{table.title}**\n\n{table.markdown()}\n")
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    parts.append(f"<sub>`{record['command']}`, {machine['date']}, {where}</sub>\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.harness.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = regenerated(old, RESULTS)
    if arguments.check:
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
