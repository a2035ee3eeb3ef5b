"""No module is imported by what it imports itself, over however many others."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("outrider", "services", exclude_type_checking_imports=True)
    imports = {it: graph.find_modules_directly_imported_by(it) for it in graph.modules}
    assert len(imports) > 500
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
