"""Charts are drawn from records alone, and the same record gives the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness import charts

ROW = {"staying": [0.8, 0.7, 0.9], "whole": [0.9, None, None], "region_whole": None}
RECORDS: dict[str, dict[str, Any]] = {
    "wan": {"figures": {"over_plain, greedy": {"100": ROW, "0": ROW, "50": ROW}}},
    "inference": {
        "samples": {
            "tokens/s, chat, greedy, 8 sessions, outrider, drafts on": {
                "n": 3,
                "values": [400, 420, 380],
            },
            "tokens/s, chat, greedy, 1 sessions, outrider, drafts on": {"n": 1, "values": [100]},
            "tokens/s, chat, greedy, 8 sessions, OpenVINO pipeline": {
                "n": 3,
                "values": [200, 200, 400],
            },
            "tokens/s, chat, greedy, 1 sessions, OpenVINO pipeline": {"n": 1, "values": [50]},
            "tokens/s, chat, greedy, 1 sessions, another": {"n": 1, "values": [50]},
            "tokens/s, chat, T=0.8, 1 sessions, outrider, drafts on": {"n": 1, "values": [90]},
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


def test_times_over_plain_streaming_are_shown_by_distance_with_their_intervals() -> None:
    staying, whole = charts.first_word(RECORDS["wan"]).lines
    assert [line.x for line in (staying, whole)] == [(0, 50, 100)] * 2
    assert (staying.low[0], staying.y[0], staying.high[0]) == (0.7, 0.8, 0.9)
    assert (whole.low[0], whole.high[0]) == (0.9, 0.9), "too few chats for an interval"


def test_throughput_is_over_the_pipeline_s_of_the_same_round() -> None:
    (line,) = charts.throughput(RECORDS["inference"]).lines
    name = "outrider, drafts on"
    assert line == charts.Line(name, (1, 8), (2.0, 2.0), (2.0, 0.95), (2.0, 2.1))
    with pytest.raises(ValueError, match="no greedy chats"):
        charts.throughput({"samples": {}})


def test_every_line_has_a_colour_of_its_own() -> None:
    assert len(charts._COMPARED) <= len(set(charts._COLOURS))


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
