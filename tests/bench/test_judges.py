"""Reports of judges: what counts as a failure, and what a page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.judges import llm_comply, schemathesis
from bench.judges.report import Finding, Report, expecting, keep
from bench.judges.target import Target
from outrider.models.catalog import DEFAULT_MODEL

_JUNIT = """<testsuites><testsuite>
<testcase name="POST /v1/b"><failure message="a 5xx">more</failure></testcase>
<testcase name="GET /v1/a" />
</testsuite></testsuites>"""


_DEFAULT = Target("http://127.0.0.1/v1", "", DEFAULT_MODEL.name)


def test_a_page_tells_what_failed(tmp_path: Path) -> None:
    found = [
        Finding("one", "passed"),
        Finding("two", "failed, as expected", "nobody has it"),
        Finding("three", "failed", "line\nand | line" + "." * 400),
        Finding("four", "left out by the judge"),
    ]
    report = Report("judge 1.0", "python -m bench.judges judge", "It tries.", found)
    assert keep("judge", report, _DEFAULT, tmp_path) == 1
    page = (tmp_path / "judge.md").read_text("utf-8")
    assert page.startswith(f"# judge 1.0\n\nAgainst a mesh that serves {DEFAULT_MODEL.name}. It")
    assert (
        "1 of 4 passed, 1 failed as expected, 1 failed that should not, 1 left out by the judge."
        in page
    )
    assert "| line and \\| line" in page
    assert "Passed:\n\n- one\n" in page
    assert "| one |" not in page
    assert max(map(len, page.splitlines())) < 400
    good = Report("judge 1.0", "", "", found[:2])
    assert keep("judge", good, replace(_DEFAULT, model="other"), tmp_path) == 0
    assert (tmp_path / "judge.other.md").exists(), "models have pages of their own"


def test_what_is_expected_to_fail_and_passes_is_a_failure() -> None:
    expected = {"one": "nobody has it", "two": "nobody has it", "three": "nobody has it"}
    found = [
        Finding("one", "passed"),
        Finding("two", "failed", "it said"),
        Finding("three", "left out by the judge"),
        Finding("four", "failed", "it said"),
    ]
    told = expecting(found, expected)
    assert [it.result for it in told] == [
        *("passed, not expected", "failed, as expected"),
        *("left out by the judge", "failed"),
    ]
    assert told[1].said == "nobody has it (it says: it said)" and told[3].said == "it said"
    assert Report("judge 1.0", "", "", told).num_failed == 2


def test_tests_of_llm_comply_are_named_by_their_api() -> None:
    row = {"id": "basic", "status": "passed", "warnings": ["odd"]}
    skipped = {"id": "other", "status": "skipped", "errors": ["of other models"]}
    assert llm_comply.findings("anthropic", {"results": [row, skipped]}) == [
        Finding("anthropic: basic", "passed", "warning: odd"),
        Finding("anthropic: other", "left out by the judge", "of other models"),
    ]


def test_a_later_try_of_llm_comply_counts_and_is_told() -> None:
    first = [Finding("one", "failed", "odd"), Finding("two", "passed"), Finding("three", "failed")]
    second = [Finding("one", "passed", "so"), Finding("two", "failed"), Finding("three", "failed")]
    assert llm_comply.best([first, second]) == [
        Finding("one", "passed", "at try 2, after: odd; so"),
        Finding("two", "passed"),
        Finding("three", "failed"),
    ]


def test_operations_of_schemathesis() -> None:
    first, second, *_ = schemathesis.findings(_JUNIT)
    assert first == Finding("GET /v1/a", "passed")
    assert second == Finding("POST /v1/b", "failed", "a 5xx more")
    assert (
        schemathesis.num_requests("not generated\n  90 generated, 90 passed\n")
        == "90 generated, 90 passed"
    )
