"""What a killed run leaves is read as far as it is whole, and only for the same run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bulk.plan import journal
from outrider.bulk.plan.results import ShardResult, TextCounts, TextProblem
from outrider.bulk.plan.shards import BulkSettings
from outrider.errors import ConfigError, InvalidRequestError
from tests.bulk.making import source

PROBLEMS = st.builds(
    TextProblem, st.text(max_size=5), st.text(max_size=9), st.none() | st.integers(0, 9)
)
RESULTS = st.lists(
    st.builds(
        ShardResult,
        st.integers(0, 9),
        st.text(max_size=8),
        st.integers(0, 99),
        st.builds(TextCounts, *[st.integers(0, 9)] * 5),
        st.lists(PROBLEMS, max_size=2).map(tuple),
        st.integers(0, 9),
    ),
    max_size=6,
)


def written(results: list[ShardResult]) -> bytes:
    return (journal.head_line("run") + "".join(map(journal.shard_line, results))).encode()


@given(RESULTS, st.data())
def test_a_journal_cut_off_anywhere_has_its_whole_lines(
    results: list[ShardResult], data: st.DataObject
) -> None:
    whole = written(results)
    cut = data.draw(st.integers(0, len(whole)))  # within a character too
    num_whole = max(0, whole[:cut].count(b"\n") - 1)
    expected = {result.number: result for result in results[:num_whole]}
    assert journal.finished(whole[:cut], "run") == expected
    assert journal.finished(journal.whole_lines(whole[:cut]), "run") == expected


def test_another_runs_journal_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="holds another run"):
        journal.finished(written([]), "other")


@pytest.mark.parametrize("line", ["{", "[]", '{"number": 1}', "3"])
def test_damage_before_the_end_is_told(line: str) -> None:
    with pytest.raises(InvalidRequestError, match="damaged"):
        journal.finished((journal.head_line("run") + line + "\n").encode(), "run")


@given(RESULTS)
def test_a_manifest_is_as_good_as_a_journal(results: list[ShardResult]) -> None:
    text = journal.manifest("run", results, BulkSettings(), {"writer": "w"})
    assert journal.of_manifest(text, "run") == journal.finished(written(results), "run")
    assert json.loads(text)["settings"]["format"] == "parquet"
    with pytest.raises(InvalidRequestError, match="holds another run"):
        journal.of_manifest(text, "other")
    with pytest.raises(InvalidRequestError, match="damaged"):
        journal.of_manifest(text[:-5], "run")


def test_everything_that_decides_on_the_output_is_in_the_fingerprint() -> None:
    files = [source("a.txt", 3)]
    same = journal.fingerprint(files, BulkSettings(), b"v", "w")
    assert same == journal.fingerprint(list(files), BulkSettings(), b"v", "w")
    others = [
        journal.fingerprint([source("a.txt", 4)], BulkSettings(), b"v", "w"),
        journal.fingerprint(files, BulkSettings(shard_bytes=9), b"v", "w"),
        journal.fingerprint(files, BulkSettings(), b"u", "w"),
        journal.fingerprint(files, BulkSettings(), b"v", "x"),
    ]
    assert same not in others and len(set(others)) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "csv"},
        {"compression": "gzip"},
        {"shard_bytes": 0},
        {"min_shards": 0},
        {"field": ""},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BulkSettings(**wrong)  # type: ignore[arg-type]
