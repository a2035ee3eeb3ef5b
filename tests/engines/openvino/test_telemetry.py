"""Nothing is reported to the makers of OpenVINO."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engines.openvino import convert

STUB = "import openvino.tools.ovc.telemetry_utils as it; assert 'stub' in it.tm.__name__"
NO_CONVERTERS = "import sys; assert sys.modules['openvino.tools.ovc'] is None"
"""They alone report."""


@pytest.mark.parametrize(
    ("program", "check"),
    [("import outrider.engines.openvino.compiling", NO_CONVERTERS), (convert._CHILD, STUB)],
)
def test_openvino_is_imported_without_its_telemetry(
    program: str, check: str, tmp_path: Path
) -> None:
    # In continuous integration it reports nothing by itself.
    environment = {name: text for name, text in os.environ.items() if name != "CI"}
    guarded = f"try:\n exec({program!r})\nfinally:\n {check}\n print('checked')"
    done = subprocess.run(
        [sys.executable, "-c", guarded, "no-such-model.gguf"],
        capture_output=True,
        text=True,
        env=environment | {"HOME": str(tmp_path)},
    )
    assert done.stdout == "checked\n", done.stderr
    assert not list(tmp_path.iterdir()), "telemetry would keep a client's id there"
