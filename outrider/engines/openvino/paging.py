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

from outrider.engines.openvino.weights import fuse_products
from outrider.errors import UnsupportedModelError

LOGIT_ROWS: Final = "logit_rows"
ATTENTION_ROWS: Final = "attention_rows"
KEPT_ROWS: Final = "kept_rows"
_QUERY_KEY_VALUE: Final = (0, 1, 2)
"""Inputs of PagedAttentionExtension with one row per token."""


def make_paged(model: Any, *, duplicate_rows: bool) -> None:
    """Transform the model in place. Raises UnsupportedModelError if its graph is another."""
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"the model's graph has no attention over a state: {error}"
        ) from error
    head = model.get_results()[0].input_value(0).get_node()
    rows = _parameter(LOGIT_ROWS, np.int64)
    head.input(0).replace_source_output(_gather(head.input_value(0), rows))
    model.add_parameters([rows, *_rework_attention(model, duplicate_rows)])
    model.validate_nodes_and_infer_types()


def fix_rows(model: Any, num_rows: int, num_attention_rows: int) -> None:
    """Restrict the paged model to calls of N = num_rows and A = num_attention_rows: its kernels are
    then prepared once, and no shape is inferred in a call."""
    lengths = {
        "input_ids": num_rows,
        "position_ids": num_rows,
        KEPT_ROWS: num_rows,
        ATTENTION_ROWS: num_attention_rows,
    }
    names = {parameter.output(0).get_any_name() for parameter in model.get_parameters()}
    model.reshape({name: [length] for name, length in lengths.items() if name in names})


def _rework_attention(model: Any, duplicate_rows: bool) -> list[Any]:
    """Fuse the products before attention and duplicate rows from there to the one behind it."""
    entering, kept = _parameter(ATTENTION_ROWS, np.int32), _parameter(KEPT_ROWS, np.int32)
    layers = [node for node in model.get_ordered_ops() if _is(node, "PagedAttentionExtension")]
    for attention in layers:
        products = _products_before(attention)
        fused = fuse_products(products)
        if duplicate_rows:
            for product in products if fused is None else [fused]:
                _gather_behind(product.output(0), entering)
            behind = _product_behind(attention)
            behind.input(0).replace_source_output(_gather(behind.input_value(0), kept))
    if not duplicate_rows:
        return []
    _duplicate_positions(model, entering)
    return [entering, kept]


def _products_before(attention: Any) -> list[Any]:
    """The weight products of queries, keys and values; reshapes on the way lose their lengths."""
    products = []
    for index in _QUERY_KEY_VALUE:
        node = attention.input_value(index).get_node()
        while not _is(node, "MatMul"):
            inputs = [value.get_node() for value in node.input_values()]
            # A gain may stand before what it is multiplied with.
            computed = [each for each in inputs if not _is_constant(each)]
            if not computed:
                raise UnsupportedModelError(
                    "the model's graph has no weight product before attention"
                )
            if _is(node, "Reshape"):
                _free_length(node, _lengths(node))
            node = computed[0]
        products.append(node)
    return products


def _product_behind(attention: Any) -> Any:
    """The output projection; reshapes on the way lose their lengths."""
    node = attention
    lengths = list[int]()
    while not _is(node, "MatMul"):
        consumers = list(node.output(0).get_target_inputs())
        if len(consumers) != 1:
            raise UnsupportedModelError("the model's graph has no weight product behind attention")
        below = consumers[0].get_node()
        if _is(below, "Reshape"):
            if below.get_output_partial_shape(0).rank.get_length() == 3:
                lengths = [-1, 1, int(np.prod(lengths[1:]))]
            else:
                lengths = _lengths(below)
            _free_length(below, lengths)
        node = below
    return node


def _duplicate_positions(model: Any, entering: Any) -> None:
    """Rotary embedding follows the rows that enter attention."""
    positions = next(p for p in model.get_parameters() if p.get_friendly_name() == "position_ids")
    _gather_behind(positions.output(0), entering)
    for node in model.get_ordered_ops():
        # The frequencies are repeated for the number of tokens; the product does that by itself.
        if _is(node, "Broadcast"):
            for consumer in list(node.output(0).get_target_inputs()):
                consumer.replace_source_output(node.input_value(0))


def _lengths(node: Any) -> list[int]:
    """The output's dimensions, -1 where unknown."""
    shape = node.get_output_partial_shape(0)
    return [each.get_length() if each.is_static else -1 for each in shape]


def _free_length(reshape: Any, lengths: list[int]) -> None:
    """Make a reshape infer its first dimension: the graph computes it from the tokens' number."""
    if lengths.count(-1) != 1:
        raise UnsupportedModelError(
            f"the model's graph reshapes to {lengths}, which cannot be inferred"
        )
    constant = ops.constant(np.array(lengths, np.int64))
    reshape.input(1).replace_source_output(constant.output(0))


def _gather_behind(output: Any, rows: Any) -> None:
    consumers = list(output.get_target_inputs())
    gathered = _gather(output, rows)
    for consumer in consumers:
        consumer.replace_source_output(gathered)


def _gather(data: Any, rows: Any) -> Any:
    return ops.gather(data, rows.output(0), ops.constant(0, dtype=np.int64)).output(0)


def _is_constant(node: Any) -> bool:
    while _is(node, "Convert"):
        node = node.input_value(0).get_node()
    return _is(node, "Constant")


def _is(node: Any, kind: str) -> bool:
    return bool(node.get_type_name() == kind)


def _parameter(name: str, dtype: type[np.generic]) -> Any:
    parameter = ops.parameter(ov.PartialShape([-1]), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter
