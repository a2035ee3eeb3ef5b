"""How a peer's setup is chosen, and who takes over whose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import tuning
from bench.harness import Run
from bench.harness.load import Setup
from bench.harness.record import load
from bench.peers.lineup import (
    INEXACT_DRAFTS,
    LLAMACPP_Q4_0,
    LLAMACPP_Q4_1,
    NAMES,
    OPENVINO,
    OPENVINO_LOOKUP,
    OURS,
)
from bench.tuning import Measured, chosen, for_latency, for_throughput, report


def measured(threads: int, chunk: int, seconds: float, gap_ms: float) -> Measured:
    return Measured(Setup(threads, chunk), [seconds], [gap_ms] * 500)


DONE = [
    measured(1, 64, 4.0, 20.0),
    measured(1, 256, 3.2, 60.0),
    measured(1, 2048, 3.1, 900.0),
    measured(2, 2048, 3.0, 800.0),
]


def test_throughput_takes_the_soonest_and_latency_the_smoothest_of_those_about_as_soon() -> None:
    assert for_throughput(DONE) == Setup(2, 2048)
    assert for_latency(DONE) == Setup(1, 256)
    assert for_latency([*DONE, measured(1, 128, 3.3, 30.0)]) == Setup(1, 128)


def test_everybody_gets_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "load", lambda name: load(name, tmp_path))
    assert chosen("latency", must_be_recorded=False) == dict.fromkeys(NAMES, Setup())
    assert "peers are not tuned" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match=r"bench\.tuning"):
        chosen("latency")
    run = Run("tuning", quick=False, command="")
    report(run, {OURS: [measured(2, 256, 5.0, 30.0)], OPENVINO: DONE})
    run.finish(tmp_path)
    found = chosen("throughput")
    assert found[OPENVINO] == found[OPENVINO_LOOKUP] == Setup(2, 2048)
    assert found[OURS] == found[INEXACT_DRAFTS] == Setup(2, 256)
    assert found[LLAMACPP_Q4_1] == found[LLAMACPP_Q4_0] == Setup()
    assert chosen("latency")[OPENVINO] == Setup(1, 256)
    record: dict[str, Any] = json.loads((tmp_path / "tuning.json").read_text())
    assert [row[-1] for row in record["tables"][0]["rows"]] == [
        *("throughput, latency", "", "latency", "", "throughput"),
    ]
    record["machine"]["cpu"] = "another one"
    (tmp_path / "tuning.json").write_text(json.dumps(record))
    with pytest.raises(RuntimeError, match="on this machine"):
        chosen("latency")
