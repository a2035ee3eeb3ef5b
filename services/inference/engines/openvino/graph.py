"""Graph surgery: from the converted stateful model to paged attention with rows of our choice.

After `make_paged` the model takes N tokens of S sequences in one call (all one-dimensional):

    input_ids, position_ids [N] i64     past_lens [S] i32        max_context_len [] i32
    subsequence_begins [S + 1] i32      block_indices [B] i32    block_indices_begins [S + 1] i32
    logit_rows [R] i64                  key_cache.i, value_cache.i [blocks, heads, tokens, size]

and returns logits [R, 1, vocabulary]. With `duplicate_rows` it also takes attention_rows [A] and
kept_rows [N], both i32: attention then sees A >= N rows (decision 0002).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

LOGIT_ROWS: Final = "logit_rows"
ATTENTION_ROWS: Final = "attention_rows"
KEPT_ROWS: Final = "kept_rows"
_QUERY_KEY_VALUE: Final = (0, 1, 2)
"""Inputs of PagedAttentionExtension with one row per token."""


def make_paged(model: Any, *, duplicate_rows: bool) -> None:
    """Transform the model in place."""
    paged_attention_transformation(model)
    inputs = [_gather_before_head(model)]
    if duplicate_rows:
        inputs += _gather_around_attention(model)
    model.add_parameters(inputs)
    model.validate_nodes_and_infer_types()


def _gather_before_head(model: Any) -> Any:
    """Compute logits only for the rows asked for."""
    rows = _parameter(LOGIT_ROWS, np.int64)
    head = model.get_results()[0].input_value(0).get_node()
    head.input(0).replace_source_output(_gather(head.input_value(0), rows))
    return rows


def _gather_around_attention(model: Any) -> list[Any]:
    entering, kept = _parameter(ATTENTION_ROWS, np.int32), _parameter(KEPT_ROWS, np.int32)
    for node in model.get_ordered_ops():
        if node.get_type_name() != "PagedAttentionExtension":
            continue
        for index in _QUERY_KEY_VALUE:
            gathered = _gather(node.input_value(index), entering)
            node.input(index).replace_source_output(gathered)
        consumers = list(node.output(0).get_target_inputs())
        gathered = _gather(node.output(0), kept)
        for consumer in consumers:
            consumer.replace_source_output(gathered)
    return [entering, kept]


def _gather(data: Any, rows: Any) -> Any:
    return ops.gather(data, rows.output(0), ops.constant(0, dtype=np.int64)).output(0)


def _parameter(name: str, dtype: type[np.generic]) -> Any:
    parameter = ops.parameter(ov.PartialShape([-1]), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter
