"""Charts are drawn from records alone, and the same record gives the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness import charts

WORD = {"mean": 86.0, "mean_low": 77.0, "mean_high": 95.5}
ALONE = {"mean": 70.0, "mean_low": None, "mean_high": None}
RECORDS: dict[str, dict[str, Any]] = {
    "wan": {
        "figures": {
            "plain_word_ms": {"100": WORD, "0": WORD, "50": WORD},
            "staying_word_ms": {"0": ALONE, "50": WORD, "100": WORD},
        }
    },
    "inference": {
        "samples": {
            "tokens/s, chat, greedy, 8 sessions, outrider": {"n": 3, "values": [400, 420, 380]},
            "tokens/s, chat, greedy, 1 sessions, outrider": {"n": 1, "values": [100]},
            "tokens/s, chat, T=0.8, 1 sessions, outrider": {"n": 1, "values": [90]},
            "TTFT, chat, outrider": {"n": 1, "values": [17]},
        }
    },
    "faults": {
        "samples": {
            "pause, fake, replica, SIGKILL": {"n": 1, "values": [5.0]},
            "pause, openvino, replica, SIGKILL": {"n": 2, "values": [200.0, 300.0]},
            "pause, openvino, edge, SIGKILL": {"n": 0, "values": []},
        }
    },
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    for name, record in RECORDS.items():
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_the_first_word_is_shown_by_distance_with_its_interval() -> None:
    plain, ours = charts.first_word(RECORDS["wan"]).lines
    assert [line.x for line in (plain, ours)] == [(0, 50, 100)] * 2
    assert (plain.low[0], plain.y[0], plain.high[0]) == (77.0, 86.0, 95.5)
    assert (ours.low[0], ours.high[0]) == (70.0, 70.0), "too few chats for an interval"


def test_throughput_is_the_median_of_greedy_chats_with_its_range() -> None:
    (line,) = charts.throughput(RECORDS["inference"]).lines
    assert line == charts.Line("outrider", (1, 8), (100, 400), (100, 380), (100, 420))
    with pytest.raises(ValueError, match="no greedy chats"):
        charts.throughput({"samples": {}})


def test_more_systems_than_colours_are_told_apart(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = [f"system {number}" for number in range(13)]
    samples = {
        f"tokens/s, chat, greedy, {count} sessions, {name}": {"n": 1, "values": [100]}
        for name in names
        for count in (1, 8)
    }
    record = {**RECORDS["inference"], "samples": samples}
    (results / "inference.json").write_text(json.dumps(record), encoding="utf-8")
    charts.draw_all(results, tmp_path)
    drawn = (tmp_path / "throughput.svg").read_text(encoding="utf-8")
    assert all(name in drawn for name in names)
    assert "stroke-dasharray" in drawn


def test_pauses_are_those_with_the_real_engine() -> None:
    strips = charts.fault_pauses(RECORDS["faults"]).strips
    assert strips == {"replica, SIGKILL\n(n = 2)": (200.0, 300.0)}
    with pytest.raises(ValueError, match="no pauses"):
        charts.fault_pauses({"samples": {}})


def test_a_chart_is_the_same_every_time_and_known_to_be_out_of_date(
    results: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    one, two = tmp_path / "one", tmp_path / "two"
    assert charts.outdated(results, one) == [chart.name for chart in charts.CHARTS]
    charts.draw_all(results, one)
    charts.draw_all(results, two)
    drawn = sorted(path.name for path in one.iterdir())
    assert drawn == sorted(f"{chart.name}.svg" for chart in charts.CHARTS)
    for name in drawn:
        assert (one / name).read_bytes() == (two / name).read_bytes()
        assert "dc:date" not in (one / name).read_text(encoding="utf-8")
    assert charts.outdated(results, one) == []
    faults = json.loads(json.dumps(RECORDS["faults"]).replace("300.0", "301.0"))
    (results / "faults.json").write_text(json.dumps(faults), encoding="utf-8")
    assert charts.outdated(results, one) == ["fault-pauses"]
