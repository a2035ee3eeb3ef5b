"""The embedding of a language model that is a graph of OpenVINO's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from outrider.errors import UnsupportedModelError
from tools.train_draft.target import Floats

_INPUT = "input_ids"
_LOOKUP = "Gather"


def read_embedding(graph: Path) -> Floats:
    """[V, width] the table in which the graph looks ids up, computed by the graph: its weights may
    be packed in any way. Raises UnsupportedModelError for a graph without such a table."""
    core = ov.Core()
    model = core.read_model(graph)
    ids = next((each for each in model.inputs if _INPUT in each.get_names()), None)
    table = None if ids is None else _looked_up(ids)
    if table is None:
        raise UnsupportedModelError(
            f"{graph.name} looks {_INPUT} up in no table, so no draft can be trained for it"
        )
    constant = ov.Model([ov.op.Result(table)], [])
    (values,) = core.compile_model(constant, "CPU")({}).values()
    return np.array(values, np.float32)


def _looked_up(ids: ov.Output) -> ov.Output | None:
    """The table of the first look-up that ids reach, which is a matrix."""
    waiting = [ids]
    while waiting:
        for target in waiting.pop(0).get_target_inputs():
            node = target.get_node()
            if node.get_type_name() == _LOOKUP and target.get_index() == 1:
                table = node.input_value(0)
                if table.get_partial_shape().rank.get_length() == 2:
                    return table
            elif node.get_type_name() in ("Convert", "Reshape", "Unsqueeze"):
                waiting += node.outputs()
    return None
