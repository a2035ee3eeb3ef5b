"""What a run leaves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench.harness.provenance import TELLING_FLAGS, commit
from bench.harness.record import Run, parser, start
from bench.harness.samples import MAX_RAW, packed, time_us


def run_of(*, quick: bool = False, plan: str = "full") -> Run:
    run = Run(name="demo", quick=quick, command="python -m bench.demo", plan=plan)
    run.table("Speeds", "what", "tok/s").add("ours", 12.0)
    run.figures["ratio"] = 1.5
    return run


def test_a_run_prints_json_last_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(plan="core")
    run.samples("ttft", [1.23456, 20000.0], unit="ms")
    run.setting("ours", threads=1)
    run.setting("ours", chunk_tokens=256)
    run.finish(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"bench": "demo", "quick": False, "ratio": 1.5}
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["figures"] == {"ratio": 1.5}
    assert record["plan"] == "core"
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["versions"]["outrider"]
    assert record["settings"] == {"ours": {"threads": 1, "chunk_tokens": 256}}
    assert record["samples"] == {"ttft": {"unit": "ms", "n": 2, "values": [1.235, 20000.0]}}
    assert record["commit"] == {"id": commit().id, "dirty": commit().dirty}
    assert set(record["machine"]["cpu_flags"]) <= set(TELLING_FLAGS)
    assert record["machine"]["precision"] in ("bf16", "f32")
    assert record["duration_s"] >= 0


def test_samples_stand_on_one_line_and_have_one_name_each(tmp_path: Path) -> None:
    run = run_of()
    run.samples("a", list(range(100)), unit="ms")
    with pytest.raises(ValueError, match="recorded already"):
        run.samples("a", [1.0], unit="ms")
    run.finish(tmp_path)
    (line,) = [x for x in (tmp_path / "demo.json").read_text().splitlines() if '"a":' in x]
    assert json.loads(line.strip().removeprefix('"a": '))["values"] == list(range(100))


def test_a_quick_run_records_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(quick=True).finish(tmp_path)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["quick"] is True
    assert list(tmp_path.iterdir()) == []


def test_many_samples_become_a_histogram() -> None:
    values = [1.5] * MAX_RAW + [-1.5, 0.0, 0.67, 1000.0]
    kept = packed(values, "ms")
    assert kept["n"] == len(values)
    assert kept["counts"] == {"+7": MAX_RAW, "-7": 1, "zero": 1, "+-7": 1, "+120": 1}
    assert (kept["lowest"], kept["highest"]) == (-1.5, 1000.0)
    assert kept["mean"] == pytest.approx(sum(values) / len(values), rel=1e-3)
    assert "values" not in kept


def test_time_us_warms_up_and_counts_calls() -> None:
    calls: list[int] = []
    samples = time_us(lambda: calls.append(1), repeats=3, calls=5)
    assert (len(samples), len(calls)) == (3, 16)


def test_only_benches_with_a_core_size_take_the_flag() -> None:
    flags = parser("demo", "", core="a smaller size").parse_args(["--core"])
    assert start("demo", flags).core
    assert not start("demo", argparse.Namespace(quick=True)).core
    with pytest.raises(SystemExit):
        parser("demo", "").parse_args(["--core"])
