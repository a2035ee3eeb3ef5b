"""Graph surgery on the real model: names, shapes, and where the rows are gathered."""

from __future__ import annotations

from typing import Any

import openvino as ov
import pytest

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from services.inference.engines.openvino.convert import converted
from services.inference.engines.openvino.graph import make_paged

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


def test_inputs_and_outputs_are_named(graph: tuple[Any, bool]) -> None:
    model, duplicating = graph
    expected = PLAIN | ({"attention_rows", "kept_rows"} if duplicating else set())
    assert {port.get_any_name() for port in model.inputs} == expected
    assert [port.get_any_name() for port in model.outputs] == ["logits"]
    assert model.outputs[0].get_partial_shape().to_string() == "[?,1,49152]"


def test_only_attention_sees_gathered_rows(graph: tuple[Any, bool]) -> None:
    model, duplicating = graph
    nodes = [n for n in model.get_ordered_ops() if n.get_type_name() == "PagedAttentionExtension"]
    assert len(nodes) == LAYERS
    for node in nodes:
        before = [node.input_value(index).get_node().get_type_name() for index in range(3)]
        after = [port.get_node().get_type_name() for port in node.output(0).get_target_inputs()]
        assert (set(before) == {"Gather"}) == duplicating
        assert (after == ["Gather"]) == duplicating


def test_the_head_computes_the_asked_rows_only(graph: tuple[Any, bool]) -> None:
    head = graph[0].get_results()[0].input_value(0).get_node()
    gather = head.input_value(0).get_node()
    assert (head.get_type_name(), gather.get_type_name()) == ("MatMul", "Gather")
    assert gather.input_value(1).get_node().get_friendly_name() == "logit_rows"
