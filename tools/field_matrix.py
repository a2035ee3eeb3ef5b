"""Write the matrix of docs/guides/fields.md: every field of a request, and what becomes of it on
each route.

    python -m tools.field_matrix [--check]

It is made from the structs of the requests and the table of all other fields; `--check` fails if
the guide has another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from services.edge.http.anthropic_messages import MessagesRequest
from services.edge.http.fields import FIELDS, Door, Field, Outcome, listed
from services.edge.http.openai_chat import ChatCompletionRequest
from services.edge.http.openai_completions import CompletionRequest
from services.edge.http.requests import OWN_NAMES
from services.edge.http.responses import ResponsesRequest

GUIDE: Final = Path(__file__).parents[1] / "docs" / "guides" / "fields.md"
BEGIN: Final = "<!-- begin: python -m tools.field_matrix -->"
END: Final = "<!-- end -->"
_BODIES: Final[dict[Door, type[msgspec.Struct]]] = {
    Door.CHAT: ChatCompletionRequest,
    Door.COMPLETIONS: CompletionRequest,
    Door.RESPONSES: ResponsesRequest,
    Door.MESSAGES: MessagesRequest,
}
_UNLISTED: Final = "passed over"


def matrix() -> str:
    """The matrix in Markdown."""
    heads = ["field", "known from", *(f"`{door}`" for door in Door)]
    lines = [_row(heads), _row(["---"] * len(heads))]
    origins = {it.name: it.of for it in reversed(FIELDS)}
    own = {name for body in _BODIES.values() for name in body.__struct_encode_fields__}
    for name in sorted(own | origins.keys()):
        cells = [_outcome(door, name) for door in Door]
        lines.append(_row([f"`{name}`", origins.get(name, ""), *cells]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _outcome(door: Door, name: str) -> str:
    field = listed(door).get(name)
    if field is None:
        return "served" if name in _BODIES[door].__struct_encode_fields__ else _UNLISTED
    if field.outcome is Outcome.MAPPED:
        return f"as {_target(door, field)}"
    if field.outcome is Outcome.REFUSED and field.neutral not in ((), (None,)):
        values = ", ".join(msgspec.json.encode(it).decode() for it in field.neutral)
        return f"400, but for `{values}`"
    return "400" if field.outcome is Outcome.REFUSED else str(field.outcome)


def _target(door: Door, field: Field) -> str:
    if " " in field.to:
        return field.to
    return f"`{OWN_NAMES.get(door, {}).get(field.to, field.to)}`"


def written(page: str) -> str:
    """The guide with the matrix as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{matrix()}\n\n{END}{after}"


def main() -> int:
    """Write the guide, or check it; the exit status."""
    page = GUIDE.read_text("utf-8")
    new = written(page)
    if "--check" in sys.argv[1:]:
        if new != page:
            sys.stderr.write(
                "docs/guides/fields.md is not as the code is; run this without --check\n"
            )
        return int(new != page)
    GUIDE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
