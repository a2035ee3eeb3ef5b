"""What a drafter is told of its model: the definitions that the edge has, whatever files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from outrider.models.catalog import SHIPPED, load_catalog
from outrider.models.definitions import ModelSpec
from services.edge.models.keys import EdgeModel
from services.edge.models.served import DefinitionsFile

TEMPLATE = "{% for m in messages %}\n[\"{{ m['content'] }}\"]\\{% endfor %}" + "x" * 200_000
SPEC = ModelSpec("mine", "file:/m.gguf", chat_template=TEMPLATE, draft="gone", stop_tokens=("é",))
READ = """
import sys
from pathlib import Path
from outrider.models.catalog import load_catalog
print([spec.source for spec in load_catalog(Path(sys.argv[1]), {"OUTRIDER_MODELS": "/dev/null"})])
"""


def test_definitions_arrive_whole_in_this_process_and_in_a_child() -> None:
    small = ModelSpec("small", "file:/s.gguf")
    file = DefinitionsFile(EdgeModel(SPEC, "small", small))
    try:
        found = load_catalog(Path(file.path), {"OUTRIDER_MODELS": "/dev/null"})
        mine = found.lookup("mine")
        assert (mine.source, mine.chat_template, mine.stop_tokens) == (
            *(SPEC.source, SPEC.chat_template, SPEC.stop_tokens),
        )
        assert mine.draft == "", "the drafter is told its draft, and that one is defined"
        assert found.lookup("small") == small
        assert len(found) == len(SHIPPED) + 2
        child = [sys.executable, "-c", READ, file.path]
        told = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "file:/m.gguf" in told and "file:/s.gguf" in told
    finally:
        file.close()
    assert not Path(file.path).exists()
