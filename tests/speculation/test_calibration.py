"""How far sources' confidence is right from the first chat on, and the file that says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ArtifactCorruptError
from outrider.models.vocabulary import Vocabulary
from outrider.speculation.calibration import (
    POSITION_BEGINS,
    Platt,
    SourceCalibrations,
    position_bucket,
)
from outrider.speculation.shipped import (
    calibrations_from_json,
    calibrations_to_json,
    shipped_calibrations,
)

LINES = tuple(Platt(-1.0 - at, 0.5) for at in range(len(POSITION_BEGINS)))
SOME = SourceCalibrations(greedy={"copy": LINES, "both": LINES[::-1]}, sampled={"copy": LINES})
DIGEST = bytes(range(32))


def test_places_have_buckets() -> None:
    assert [position_bucket(at) for at in (0, 1, 2, 3, 7, 8, 9000)] == [0, 1, 2, 3, 3, 4, 4]


def test_a_file_gives_back_what_was_written() -> None:
    assert calibrations_from_json(calibrations_to_json(DIGEST, SOME)) == (DIGEST, SOME)
    assert calibrations_from_json(calibrations_to_json(DIGEST, SourceCalibrations())) == (
        DIGEST,
        SourceCalibrations(),
    )


def test_a_source_nobody_knows_is_taken_at_its_word() -> None:
    assert SOME.of("copy", are_sampled=False) == LINES
    assert SOME.of("both", are_sampled=True)[0].chance(0.7) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("{", "["),
        ('"tokens_digest": "00', '"tokens_digest": "no'),
        ("[0, 1, 2, 3, 8]", "[0, 1, 2]"),
        ('"greedy"', '"greed"'),
        ("[-1.0, 0.5], ", ""),
        ("[-1.0, 0.5]", "[-1.0]"),
        ("[-1.0, 0.5]", "[-1.0, -0.5]"),
        ("[-1.0, 0.5]", "[NaN, 0.5]"),
        ("[-1.0, 0.5]", '["a", 0.5]'),
    ],
)
def test_a_damaged_file_is_refused(right: str, wrong: str) -> None:
    text = calibrations_to_json(DIGEST, SOME)
    assert right in text
    with pytest.raises(ArtifactCorruptError, match="damaged"):
        calibrations_from_json(text.replace(right, wrong))


@given(st.floats(-4, 4), st.floats(0.2, 2), st.lists(st.floats(0, 1), min_size=2))
def test_the_order_of_confidences_stays(
    shift: float, slope: float, confidences: list[float]
) -> None:
    chances = [Platt(shift, slope).chance(confidence) for confidence in sorted(confidences)]
    assert chances == sorted(chances)
    assert all(0 < chance < 1 for chance in chances)


def test_a_vocabulary_without_a_file_takes_sources_at_their_word() -> None:
    assert shipped_calibrations(bytes(32)) == SourceCalibrations()


@pytest.mark.model
def test_the_shipped_file_knows_the_sources_of_its_vocabulary(vocabulary: Vocabulary) -> None:
    shipped = shipped_calibrations(vocabulary.tokens_digest)
    for by_source in (shipped.greedy, shipped.sampled):
        assert set(by_source) == {"both", "copy", "model", "suffix"}
