"""Tables: what a cell shows, and what it does not."""

import pytest

from bench.harness.tables import FEW_SAMPLES, TOO_FEW, Table, show


def table() -> Table:
    return Table("t", ("a",))


@pytest.mark.parametrize(
    ("cell", "text"),
    [(1234.5, "1,234"), (0.01234, "0.0123"), (9.876, "9.88"), (0.0, "0"), (7, "7"), ("a", "a")],
)
def test_floats_have_three_significant_digits(cell: str | float, text: str) -> None:
    assert show(cell) == text


def test_a_row_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 1"):
        table().add(1, 2)


@pytest.mark.parametrize(("share", "needed"), [(0.95, 100), (0.99, 500)])
def test_a_quantile_of_too_few_samples_is_not_shown(share: float, needed: int) -> None:
    few, enough = table(), table()
    assert few.quantile([1.0] * (needed - 1), share) == TOO_FEW
    few.add(TOO_FEW)
    assert few.markdown() == f"| a |\n| ---: |\n| {TOO_FEW} |\n\n{FEW_SAMPLES}"
    assert few.plain().endswith(FEW_SAMPLES)
    assert enough.quantile([1.0] * needed, share) == 1.0
    assert enough.notes == []


def test_a_median_comes_with_its_interval() -> None:
    one = table()
    one.add(one.median([3.0, 1.0, 2.0]))
    assert one.rows == [("2.00 (1.00 to 3.00)",)]
    assert "lowest to highest" in one.markdown()
    many = table()
    many.add(many.median([float(n) for n in range(1, 101)]))
    assert many.rows == [("50.5 (40.0 to 61.0)",)]
    assert "95 % interval" in many.markdown()
    assert "---:" in many.markdown()  # a figure, though it is text
    assert table().median([]) == TOO_FEW


def test_a_mean_ratio_comes_with_its_interval() -> None:
    assert table().mean_ratio([0.5, 2.0, 1.0, 1.0]) == "1.00 (0.407 to 2.46)"
    assert table().mean_ratio([]) == TOO_FEW


def test_a_note_stands_once() -> None:
    one = table()
    for _ in range(3):
        one.note("n = 5.")
    assert one.notes == ["n = 5."]
