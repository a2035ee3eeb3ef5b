"""Write the table of docs/guides/engines.md: what each engine promises, and where it was run.

    python -m tools.engine_table [--check]

It is made from outrider/engines/guarantees.py; `--check` fails if the page has another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from outrider.engines.guarantees import ENGINES, Guarantee

GUIDE: Final = Path(__file__).parents[1] / "docs" / "guides" / "engines.md"
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


def table() -> str:
    """The table in Markdown."""
    rows = [
        ["", *(f"`{name}`" for name in ENGINES)],
        ["---"] * (len(ENGINES) + 1),
        ["run by us", *(record.run_by_us for record in ENGINES.values())],
    ]
    for guarantee in Guarantee:
        cells = [record.holds.get(guarantee, "no") for record in ENGINES.values()]
        rows.append([f"`{guarantee}`: {_WORDS[guarantee]}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    """Write the page, or check it; the exit status."""
    page = GUIDE.read_text("utf-8")
    new = written(page)
    if "--check" in sys.argv[1:]:
        if new != page:
            sys.stderr.write(
                "docs/guides/engines.md is not as the code is; run this without --check\n"
            )
        return int(new != page)
    GUIDE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
