"""The bench harness: order statistics, tables, records and the README's blocks."""

import json
import math
from pathlib import Path
from statistics import StatisticsError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.figures import Run, Table, mean_ratio, quantile, show, spread, time_us
from bench.harness.readme import regenerated, shown

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(samples=SAMPLES, share=st.floats(0, 1))
def test_quantiles_are_numpy_s(samples: list[float], share: float) -> None:
    assert quantile(samples, share) == pytest.approx(np.quantile(samples, share), abs=1e-6)


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_the_mean_of_ratios_is_geometric_and_has_an_interval() -> None:
    mean, low, high = mean_ratio([0.5, 2.0, 1.0, 1.0])
    assert mean == pytest.approx(1.0)
    assert low == pytest.approx(1 / high)
    assert high == pytest.approx(math.exp(3.18 * math.log(2) * math.sqrt(2 / 3) / 2))
    assert mean_ratio([3.0]) == pytest.approx((3.0, 0.0, math.inf))
    with pytest.raises(StatisticsError):
        mean_ratio([])


def test_time_us_warms_up_and_counts_calls() -> None:
    calls: list[int] = []
    samples = time_us(lambda: calls.append(1), repeats=3, calls=5)
    assert (len(samples), len(calls)) == (3, 16)


@pytest.mark.parametrize(
    ("cell", "text"),
    [(1234.5, "1,234"), (0.01234, "0.0123"), (9.876, "9.88"), (0.0, "0"), (7, "7"), ("a", "a")],
)
def test_floats_have_three_significant_digits(cell: str | float, text: str) -> None:
    assert show(cell) == text


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 1"):
        Table("t", ("a",)).add(1, 2)


def run_of(quick: bool) -> Run:
    run = Run(name="demo", quick=quick, command="python -m bench.demo")
    table = run.table("Speeds", "what", "tok/s")
    table.add("ours", 12.0)
    table.add("theirs", 8.0)
    run.figures["ratio"] = 1.5
    return run


def test_a_run_prints_json_last_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(quick=False).finish(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"bench": "demo", "quick": False, "ratio": 1.5}
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["figures"] == {"ratio": 1.5}
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["versions"]["outrider"]


def test_a_quick_run_records_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(quick=True).finish(tmp_path)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["quick"] is True
    assert list(tmp_path.iterdir()) == []


def test_the_readme_s_blocks_are_made_anew(tmp_path: Path) -> None:
    run_of(quick=False).finish(tmp_path)
    text = "# A\n<!-- bench:demo -->\nold\n<!-- /bench:demo -->\nB\n"
    assert shown([text, "", text]) == ["demo"]
    new = regenerated(text, tmp_path)
    assert "| ours | 12.0 |" in new
    assert "| what | tok/s |\n| --- | ---: |" in new
    assert "old" not in new
    assert new.startswith("# A\n<!-- bench:demo -->\n")
    assert new.endswith("<!-- /bench:demo -->\nB\n")
    assert regenerated(new, tmp_path) == new


def test_a_block_may_have_one_table_alone(tmp_path: Path) -> None:
    run = run_of(quick=False)
    run.table("Second", "what").add("theirs")
    run.finish(tmp_path)
    new = regenerated("<!-- bench:demo:2 -->\n<!-- /bench:demo -->", tmp_path)
    assert "**Second**" in new
    assert "ours" not in new


def test_a_block_without_results_says_so(tmp_path: Path) -> None:
    new = regenerated("<!-- bench:none -->\n<!-- /bench:none -->", tmp_path)
    assert new == (
        "<!-- bench:none -->\nNot recorded yet: `python -m bench.none`.\n<!-- /bench:none -->"
    )
