"""Events of logs are named in one style, and say what happened, not whom it happened to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def events() -> Iterator[tuple[str, str]]:
    """Where each call of a logger is, and its first argument."""
    for folder in ("outrider", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    logger = ast.unparse(node.func.value)
                    if node.func.attr in LEVELS and logger in ("log", "_log", "self._log"):
                        yield f"{file.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.args[0])


def test_events_are_words_joined_by_underscores() -> None:
    found = dict(events())
    assert len(found) > 50
    odd = {
        where: text
        for where, text in found.items()
        if not NAME.fullmatch(text.strip("'\"")) or text[0] not in "'\""
    }
    assert odd == {}
