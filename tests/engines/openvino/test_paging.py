"""Graph surgery on the real model: names, shapes, and where the rows are gathered."""

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
PLAIN = {
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "logit_rows",
    *(f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in range(LAYERS)),
}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "duplicating"])
def graph(request: pytest.FixtureRequest, model_store: ModelStore) -> tuple[Any, bool]:
    """A transformed model, and whether it duplicates rows."""
    model = ov.Core().read_model(converted(DEFAULT_MODEL, model_store).graph)
    make_paged(model, duplicate_rows=request.param)
    return model, request.param


def _gathers(model: Any, parameter: str) -> list[Any]:
    """The Gather nodes that a parameter indexes."""
    port = next(port for port in model.inputs if port.get_any_name() == parameter)
    return [consumer.get_node() for consumer in port.get_target_inputs()]


def test_inputs_and_outputs_are_named(graph: tuple[Any, bool]) -> None:
    model, duplicating = graph
    expected = PLAIN | ({"attention_rows", "kept_rows"} if duplicating else set())
    assert {port.get_any_name() for port in model.inputs} == expected
    assert [port.get_any_name() for port in model.outputs] == ["logits"]
    assert model.outputs[0].get_partial_shape().to_string() == "[?,1,49152]"


def test_rows_are_duplicated_from_the_fused_product_to_the_one_behind(
    graph: tuple[Any, bool],
) -> None:
    model, duplicating = graph
    if not duplicating:
        assert not {"attention_rows", "kept_rows"} & {p.get_any_name() for p in model.inputs}
        return
    entering, kept = _gathers(model, "attention_rows"), _gathers(model, "kept_rows")
    sources = [node.input_value(0).get_node().get_type_name() for node in entering]
    assert sorted(sources) == ["MatMul"] * LAYERS + ["Parameter"]
    targets = [next(iter(node.output(0).get_target_inputs())).get_node() for node in kept]
    assert [node.get_type_name() for node in targets] == ["MatMul"] * LAYERS


def test_queries_keys_and_values_come_from_one_product(graph: tuple[Any, bool]) -> None:
    splits = [n for n in graph[0].get_ordered_ops() if n.get_type_name() == "VariadicSplit"]
    assert len(splits) == LAYERS
    assert {
        tuple(port.get_partial_shape()[2].get_length() for port in split.outputs())
        for split in splits
    } == {(576, 192, 192)}


def test_the_head_computes_the_asked_rows_only(graph: tuple[Any, bool]) -> None:
    head = graph[0].get_results()[0].input_value(0).get_node()
    gather = head.input_value(0).get_node()
    assert (head.get_type_name(), gather.get_type_name()) == ("MatMul", "Gather")
    assert gather.input_value(1).get_node().get_friendly_name() == "logit_rows"


def test_a_graph_that_is_no_language_model_is_refused() -> None:
    data = ops.parameter(ov.PartialShape([-1, 4]), np.float32, name="data")
    model = ov.Model([ops.relu(data)], [data])
    with pytest.raises(EngineError, match="no attention over a state"):
        make_paged(model, duplicate_rows=True)
