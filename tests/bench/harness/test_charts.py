"""Charts are drawn from records alone, and the same record gives the same file."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.harness import charts

Matrix = NDArray[np.float64]
SEEN: Final[dict[str, Matrix]] = {
    "all cones": np.eye(3),
    "no red cones": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "no green cones": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue cones": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
"""What becomes of linear RGB, by kind of colour vision (Machado, Oliveira, Fernandes 2009)."""
MIN_DISTANCE: Final = 12.0
"""In CIE L*a*b*; 2.3 is just noticeable side by side."""


def distance(one: str, two: str, seen: Matrix) -> float:
    """How far apart two colours look, in CIE L*a*b* (1976)."""
    return float(np.linalg.norm(_lab(one, seen) - _lab(two, seen)))


def _lab(colour: str, seen: Matrix) -> Matrix:
    coded = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / to_xyz.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


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
    "capacity": {
        "figures": {"curves": {name: {"16": 1.5, "2": 2.0, "4": None} for name in charts._CURVES}}
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


def test_chats_are_shown_where_their_number_is_known() -> None:
    line = charts.capacity(RECORDS["capacity"]).lines[0]
    assert (line.x, line.y, line.low, line.high) == ((2, 16), (2.0, 1.5), (2.0, 1.5), (2.0, 1.5))


def test_every_line_has_a_colour_of_its_own() -> None:
    for names in (charts._COMPARED, charts._CURVES):
        assert len(names) <= len(set(charts.COLOURS)) <= 6


@pytest.mark.parametrize("vision", SEEN)
def test_colours_are_told_apart_by_every_reader(vision: str) -> None:
    told = [(*pair, distance(*pair, SEEN[vision])) for pair in combinations(charts.COLOURS, 2)]
    assert all(apart > MIN_DISTANCE for *_, apart in told), min(told, key=lambda it: it[-1])


def test_colours_that_look_alike_to_some_are_found() -> None:
    blue, purple = "#4c72b0", "#8172b3"
    assert distance(blue, purple, SEEN["all cones"]) > MIN_DISTANCE
    assert distance(blue, purple, SEEN["no red cones"]) < MIN_DISTANCE / 4


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
