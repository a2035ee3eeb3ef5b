"""llm-comply: answers of chat completions, Responses and Anthropic Messages against the
specifications, which it carries with it. It looks nothing up."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.judges.target import Target

REPORT: Final = Path(__file__).parents[2] / "docs" / "judges" / "llm-comply.md"
_FORMATS: Final = {
    "openai-chat": (),
    "open-responses": (),
    "anthropic": ("--header", "anthropic-version:2023-06-01"),
}
"""With what each is asked for."""
_NO_TOOLS: Final = "the default model's chat template shows no tools"
_EXPECTED: Final = {
    "chat-image-input": "models here read text alone",
    "image-input": "models here read text alone",
    "anth-image-input": "models here read text alone",
    "chat-tool-calling": _NO_TOOLS,
    "tool-calling": _NO_TOOLS,
    "anth-tool-calling": _NO_TOOLS,
    "chat-error-handling": "a request that names no model gets the edge's first one",
}
"""Tests that cannot pass, and why."""
_TIMEOUT_S: Final = 300


def judge(target: Target) -> int:
    """Write the report; 1 if a test failed that should not."""
    results = {name: _run(name, options, target) for name, options in _FORMATS.items()}
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(report(results, target.model), encoding="utf-8")
    print(f"wrote {REPORT}", file=sys.stderr)
    return int(any(_unexpected(found) for found in results.values()))


def _run(name: str, options: tuple[str, ...], target: Target) -> dict[str, Any]:
    # It wants a key. A mesh without any refuses unknown ones, and does not look at this header.
    header = () if target.key else ("--auth-header", "x-no-key")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "llm_comply.cli", "--format", name, "--json"),
            *("--base-url", target.url, "--api-key", target.key or "none"),
            *("--model", target.model, "--timeout", str(_TIMEOUT_S), *header, *options),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    # What is printed before the summary is a line for each test.
    begin = finished.stdout.find("{")
    if begin < 0:
        raise RuntimeError(f"llm-comply failed: {finished.stderr}")
    found: dict[str, Any] = json.loads(finished.stdout[begin:])
    return found


def _unexpected(found: dict[str, Any]) -> list[str]:
    return [
        it["id"]
        for it in found["results"]
        if it["status"] == "failed" and it["id"] not in _EXPECTED
    ]


def report(results: dict[str, dict[str, Any]], model: str) -> str:
    """The report, in Markdown."""
    lines = [
        "# llm-comply",
        "",
        f"llm-comply {version('llm-comply')} against a mesh that serves {model}; made by",
        "`python -m bench.judges llm_comply`.",
    ]
    for name, found in results.items():
        summary = found["summary"]
        lines += [
            "",
            f"## {name}: {summary['passed']} of {summary['total']} passed, "
            f"{summary['failed']} failed, {summary['skipped']} left out by the judge",
            "",
            "| test | result | what it says |",
            "| --- | --- | --- |",
            *(_row(it) for it in found["results"]),
        ]
    return "\n".join(lines) + "\n"


def _row(result: dict[str, Any]) -> str:
    said = [*result.get("errors", ()), *(f"warning: {it}" for it in result.get("warnings", ()))]
    status = result["status"]
    if status == "failed" and result["id"] in _EXPECTED:
        said = [_EXPECTED[result["id"]]]
        status = "failed, as expected"
    text = "; ".join(said)[:300].replace("|", "\\|").replace("\n", " ")
    return f"| {result['id']} | {status} | {text} |"
