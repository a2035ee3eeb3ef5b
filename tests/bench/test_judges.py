"""Reports of judges: what counts as a failure, and what a page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.judges import clients, compatcanary, llamacpp_tests, schemathesis
from bench.judges.report import Finding, Report, keep

_JUNIT = """<testsuites><testsuite>
<testcase name="POST /v1/b"><failure message="a 5xx">more</failure></testcase>
<testcase name="GET /v1/a" />
<testcase name="test_x"><skipped message="not here" /></testcase>
</testsuite></testsuites>"""


def test_a_page_tells_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Finding("one", "passed"),
        Finding("two", "failed, as expected", "nobody has it"),
        Finding("three", "failed", "line\nand | line" + "." * 400),
    ]
    report = Report("judge 1.0", "python -m bench.judges judge", "It tries.", found)
    assert keep("judge", report, "model", tmp_path) == 1
    page = (tmp_path / "judge.md").read_text("utf-8")
    assert page.startswith("# judge\n\njudge 1.0 against a mesh that serves model. It tries.")
    assert "1 of 3 passed, 1 failed that should not." in page
    assert "| line and \\| line" in page
    assert max(map(len, page.splitlines())) < 400
    good = Report("judge 1.0", "", "", found[:2])
    assert keep("judge", good, "model", tmp_path) == 0


def test_operations_of_schemathesis() -> None:
    first, second, *_ = schemathesis.findings(_JUNIT)
    assert first == Finding("GET /v1/a", "passed")
    assert second == Finding("POST /v1/b", "failed", "a 5xx more")
    assert (
        schemathesis.num_requests("not generated\n  90 generated, 90 passed\n")
        == "90 generated, 90 passed"
    )


def test_tests_of_llamacpp_that_did_not_run_are_no_findings() -> None:
    found = llamacpp_tests.findings(_JUNIT)
    assert [it.what for it in found] == ["POST /v1/b", "GET /v1/a"]


def test_a_warning_of_compatcanary_is_a_failure() -> None:
    rows = [{"name": name, "status": name, "summary": "so"} for name in ("pass", "warn", "fail")]
    found = compatcanary.findings({"results": rows})
    assert [it.result for it in found] == ["passed", "failed", "failed"]


def test_what_libraries_print_is_no_finding() -> None:
    row = {"what": "a reply", "result": "passed", "said": "so"}
    assert clients.findings(f"hello\n{json.dumps(row)}\n") == [Finding(**row)]


def test_names_of_requirements() -> None:
    asked = ("niquests[http3]==3.21.2", "langchain-openai>=1.7,<2", "litellm")
    assert [clients.distribution(it) for it in asked] == ["niquests", "langchain-openai", "litellm"]
