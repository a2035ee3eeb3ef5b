"""What `bench.models` says, from what was found; and that it leaves no kind of model out."""

from __future__ import annotations

from bench.harness import Run
from bench.models.__main__ import Measured, report
from bench.models.replicas import Memory
from bench.models.subjects import Subject
from outrider.models.definitions import ModelSpec

MEMORY = Memory(resident=900.0, proportional=850.0, anonymous=800.0, peak=1000.0)


def measured(name: str, num_replies: int = 8, num_equal: int = 8) -> Measured:
    subject = Subject(ModelSpec(name, "file:/m.gguf"), "GGUF, Q8_0")
    return Measured(subject, 12.34, 3.21, 1500.0, MEMORY, [1, 2], num_replies, num_equal, 256)


def test_a_row_for_each_model() -> None:
    run = Run("models", quick=True, command="")
    found = [measured("m"), measured("t", num_replies=0, num_equal=0)]
    report(run, found, {"large": "large was not measured: no"})
    (starts,) = run.tables
    assert starts.rows[0][:5] == ("m", "GGUF, Q8_0", 12.34, 3.21, 1500.0)
    assert starts.rows[0][5:] == (1000.0, 900.0, 850.0, 800.0, "1, 2", 256, "8 of 8")
    assert starts.notes == ["large was not measured: no."]
    assert not found[1].exact, "nothing compared is not exact"


def test_one_reply_that_differs_is_not_exact() -> None:
    assert measured("m").exact and not measured("m", num_equal=7).exact
