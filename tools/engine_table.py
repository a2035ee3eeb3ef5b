"""Write what each engine promises, and where it was run: the table of docs/guides/engines.md, and
a short one in README.md.

    python -m tools.engine_table [--check]

Both are made from outrider/engines/guarantees.py; `--check` fails if a page has another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from outrider.engines.guarantees import ENGINES, Guarantee

ROOT: Final = Path(__file__).parents[1]
BEGIN: Final = "<!-- begin: python -m tools.engine_table -->"
END: Final = "<!-- end -->"
_WORDS: Final = {
    Guarantee.EXACT: "the text is the same bits whatever else is computed with it",
    Guarantee.EXACT_MOVES: "a reply moves to an equal replica without a changed byte",
    Guarantee.WHOLE_MOVES: "a moved reply loses and repeats no token",
    Guarantee.DRAFTS: "drafts are verified",
    Guarantee.ISOLATION: "trust groups share no cached prefix",
    Guarantee.SAMPLING: "temperature, `top_k`, `top_p`, `min_p`, `seed`, in any combination",
    Guarantee.PENALTIES: "penalties, `logit_bias`",
    Guarantee.LOGPROBS: "log probabilities",
    Guarantee.GRAMMARS: "JSON schemas, JSON objects, regular expressions",
    Guarantee.REASONING_LIMIT: "`max_thinking_tokens`",
    Guarantee.KV_TRANSFER: "KV from and for other replicas and the prefix store",
}

_IN_SHORT: Final = {
    Guarantee.EXACT: "same bits in any batch",
    Guarantee.EXACT_MOVES: "failover changes no byte",
    Guarantee.WHOLE_MOVES: "failover loses no token",
    Guarantee.ISOLATION: "cache by trust group",
    Guarantee.DRAFTS: "verifies drafts",
    Guarantee.GRAMMARS: "grammars",
}
"""The README's columns."""


def guide_table() -> str:
    """Every promise of every engine, in Markdown."""
    rows = [
        ["", *(f"`{name}`" for name in ENGINES)],
        ["---"] * (len(ENGINES) + 1),
        ["run by us", *(record.run_by_us for record in ENGINES.values())],
    ]
    for guarantee in Guarantee:
        cells = [record.holds.get(guarantee, "no") for record in ENGINES.values()]
        rows.append([f"`{guarantee}`: {_WORDS[guarantee]}", *cells])
    return _markdown(rows)


def readme_table() -> str:
    """The promises that tell engines apart most, of engines that have a model, in Markdown."""
    rows = [
        ["engine", "run by us", *_IN_SHORT.values()],
        ["---"] * (len(_IN_SHORT) + 2),
    ]
    for name, record in ENGINES.items():
        if not name.startswith("fake"):
            cells = [record.holds.get(guarantee, "no") for guarantee in _IN_SHORT]
            rows.append([f"`{name}`", record.run_by_us, *cells])
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PAGES: Final = {"README.md": readme_table, "docs/guides/engines.md": guide_table}
"""By a page's path, what stands in it."""


def written(page: str, table: str) -> str:
    """The page with this table in the table's place. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place that begins with {BEGIN} and ends with {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages below `root`, or check them; the exit status."""
    is_check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    num_others = 0
    for name, table in PAGES.items():
        path = root / name
        page = path.read_text("utf-8")
        new = written(page, table())
        num_others += new != page
        if new != page and is_check:
            sys.stderr.write(f"{name} is not as the code is; run this without --check\n")
        elif new != page:
            path.write_text(new, "utf-8")
    return int(is_check and num_others > 0)


if __name__ == "__main__":
    raise SystemExit(main())
