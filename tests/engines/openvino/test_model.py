"""A call that computed nothing is an error, even where OpenVINO reports none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.shallow_model import ShallowModel

pytestmark = pytest.mark.model

CHILD = """
import dataclasses, sys
from pathlib import Path
import numpy as np
from outrider.errors import EngineError
from outrider.engines.base import SequenceSlice, SizingRule
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.convert import ConvertedModel, ModelFacts
from outrider.engines.openvino.model import PagedModel

facts = ModelFacts(vocabulary_size=49152, max_context_tokens=8192)
config = EngineConfig(threads=int(sys.argv[2]), num_blocks=4)
model = PagedModel(
    ConvertedModel(Path(sys.argv[1]), facts),
    config,
    scratch_tokens=1,
    sizing=SizingRule(),
    max_context_tokens=8192,
)
part = SequenceSlice(1, np.array([5, 6, 7], np.int32), 0, np.array([2], np.int32), 1)
inputs = model.layout.inputs([part])
for broken in ({}, {"kept_rows": np.zeros(2, np.int32)}, {}):
    try:
        print(model.infer(inputs | broken, (2, 2), 1).shape, flush=True)
    except EngineError as error:
        print(error.message.splitlines()[0], flush=True)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failed_call_is_noticed_and_ends_the_model(
    shallow_model: ShallowModel, threads: int
) -> None:
    # In a process of its own: after such a failure OpenVINO may crash on the way out.
    directory: Path = shallow_model.converted.directory
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(directory), str(threads)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    first, second, third = child.stdout.splitlines()[-3:]  # a line of the log comes before
    assert first == "(1, 49152)"
    assert second.startswith("the model failed: ")
    assert third.startswith("the model failed before (")
