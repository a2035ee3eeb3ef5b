"""Graph surgery on the real model, as far as no row shows it: what is computed at once, and which
rows are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from outrider.engines.openvino.convert import converted
from outrider.engines.openvino.paging import make_paged
from outrider.errors import EngineError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore

pytestmark = pytest.mark.model

LAYERS = 30


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "duplicating"])
def graph(request: pytest.FixtureRequest, model_store: ModelStore) -> Any:
    """A transformed model, which duplicates rows or not."""
    model = ov.Core().read_model(converted(DEFAULT_MODEL, model_store).graph)
    make_paged(model, duplicate_rows=request.param)
    return model


def test_queries_keys_and_values_come_from_one_product(graph: Any) -> None:
    splits = [n for n in graph.get_ordered_ops() if n.get_type_name() == "VariadicSplit"]
    assert len(splits) == LAYERS
    assert {
        tuple(port.get_partial_shape()[2].get_length() for port in split.outputs())
        for split in splits
    } == {(576, 192, 192)}


def test_the_head_computes_the_asked_rows_only(graph: Any) -> None:
    head = graph.get_results()[0].input_value(0).get_node()
    gather = head.input_value(0).get_node()
    assert (head.get_type_name(), gather.get_type_name()) == ("MatMul", "Gather")
    assert gather.input_value(1).get_node().get_friendly_name() == "logit_rows"


def test_a_graph_that_is_no_language_model_is_refused() -> None:
    data = ops.parameter(ov.PartialShape([-1, 4]), np.float32, name="data")
    model = ov.Model([ops.relu(data)], [data])
    with pytest.raises(EngineError, match="no attention over a state"):
        make_paged(model, duplicate_rows=True)
