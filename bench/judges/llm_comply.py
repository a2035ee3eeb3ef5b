"""llm-comply: answers of chat completions, Responses and Anthropic Messages against the
specifications, which it carries with it. It looks nothing up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from bench.judges.report import NO_TOOLS, Finding, Report, expecting, keep
from bench.judges.target import Target

_FORMATS: Final = {
    "openai-chat": (),
    "open-responses": (),
    "anthropic": ("--header", "anthropic-version:2023-06-01"),
}
"""With what each is asked for."""
_TEXT_ALONE: Final = "models here read text alone; an image is refused with 400"
_EXPECTED: Final = {
    "openai-chat: chat-image-input": _TEXT_ALONE,
    "open-responses: image-input": _TEXT_ALONE,
    "anthropic: anth-image-input": _TEXT_ALONE,
    "openai-chat: chat-error-handling": "it asks without a model and wants an error; such a "
    "request gets the edge's first model, as llama.cpp's server does",
}
"""Tests that cannot pass, and why."""
_WITHOUT_TOOLS: Final = {
    "openai-chat: chat-tool-calling": NO_TOOLS,
    "open-responses: tool-calling": NO_TOOLS,
    "anthropic: anth-tool-calling": NO_TOOLS,
}
_TIMEOUT_S: Final = 300


def judge(target: Target) -> int:
    """Write the report; 1 if a test failed that should not."""
    results = {name: _run(name, options, target) for name, options in _FORMATS.items()}
    expected = _EXPECTED | (_WITHOUT_TOOLS if target.is_default else {})
    tried = "Its tests of three APIs, by the specifications that it carries with it."
    command = f"python -m bench.judges llm_comply{target.option}"
    found = expecting(findings(results), expected)
    judged = Report(f"llm-comply {version('llm-comply')}", command, tried, found)
    return keep("llm-comply", judged, target)


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


def findings(results: Mapping[str, dict[str, Any]]) -> list[Finding]:
    """One for each test of each API."""
    return [_finding(name, it) for name, found in results.items() for it in found["results"]]


def _finding(name: str, result: dict[str, Any]) -> Finding:
    said = [*result.get("errors", ()), *(f"warning: {it}" for it in result.get("warnings", ()))]
    status = "left out by the judge" if result["status"] == "skipped" else result["status"]
    return Finding(f"{name}: {result['id']}", status, "; ".join(said))
