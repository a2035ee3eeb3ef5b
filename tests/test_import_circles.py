"""No module is imported by what it imports itself, over however many others; and the rooms of an
edge, of a router and of a replica are drawn in the order that import-linter enforces."""

from __future__ import annotations

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
WIDTH = 28
"""Of the drawing's first column."""


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("outrider", "services", exclude_type_checking_imports=True)
    imports = {it: graph.find_modules_directly_imported_by(it) for it in graph.modules}
    assert len(imports) > 500
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("package", "title"),
    [
        ("services.edge", "The rooms of an edge"),
        ("services.router", "The rooms of a router"),
        ("services.inference", "The rooms of a replica"),
    ],
)
def test_rooms_are_drawn_in_the_order_that_is_enforced(package: str, title: str) -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (enforced,) = (it for it in linter["contracts"] if it.get("containers") == [package])
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = page.partition(f"### {title}\n")[2].split("```")[1]
    drawn = [name for line in drawing.splitlines() if (name := line[:WIDTH].strip())]
    assert drawn == enforced["layers"] and enforced["exhaustive"]
