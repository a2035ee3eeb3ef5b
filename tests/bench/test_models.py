"""What `bench.models` says, from what was found; and that it leaves no kind of model out."""

from __future__ import annotations

import json
from pathlib import Path

import gguf

from bench.harness import Run
from bench.models.__main__ import Measured, report
from bench.models.replicas import Memory
from bench.models.subjects import TYPE_CLASSES, Subject, tiny_models
from outrider.engines.openvino.architectures import ARCHITECTURES
from outrider.engines.openvino.repacking import READABLE
from outrider.models.definitions import ModelSpec

MEMORY = Memory(resident=900.0, proportional=850.0, anonymous=800.0, peak=1000.0)


def measured(name: str, num_replies: int = 8, num_equal: int = 8) -> Measured:
    subject = Subject(ModelSpec(name, "file:/m.gguf"), "GGUF, Q8_0")
    return Measured(subject, 12.34, 3.21, 1500.0, MEMORY, [1, 2], num_replies, num_equal, 256)


def test_table_and_figures() -> None:
    run = Run("models", quick=True, command="")
    found = [measured("m"), measured("t", num_replies=0, num_equal=0)]
    report(run, found, {"large": "large was not measured: no"})
    (starts,) = run.tables
    assert starts.rows[0][:5] == ("m", "GGUF, Q8_0", 12.34, 3.21, 1500.0)
    assert starts.rows[0][5:] == (1000.0, 900.0, 850.0, 800.0, "1, 2", 256, "8 of 8")
    assert starts.notes == ["large was not measured: no."]
    figures = json.loads(json.dumps(run.figures))
    assert figures["exact"] == {"m": True, "t": False}, "nothing compared is not exact"
    assert figures["rss_mb"] == {"m": 1000.0, "t": 1000.0}
    assert figures["ready_s"]["m"] == {"cold": 12.3, "warm": 3.2}


def test_one_reply_that_differs_is_not_exact() -> None:
    assert measured("m").exact and not measured("m", num_equal=7).exact


def test_every_architecture_and_every_type_is_among_the_tiny_models(tmp_path: Path) -> None:
    assert sorted(name for names in TYPE_CLASSES.values() for name in names) == sorted(READABLE)
    for quick in (True, False):
        models = tiny_models(tmp_path, quick=quick)
        files = [gguf.GGUFReader(subject.spec.source.removeprefix("file:")) for subject in models]
        found = {file.fields["general.architecture"].contents() for file in files}
        assert found == set(ARCHITECTURES)
    types = {
        tensor.tensor_type.name
        for file in files
        for tensor in file.tensors
        if len(tensor.shape) == 2
    }
    assert types == set(READABLE)
