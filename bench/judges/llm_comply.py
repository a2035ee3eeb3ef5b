"""llm-comply: answers of chat completions, Responses and Anthropic Messages against the
specifications, which it carries with it. It looks nothing up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
_LEFT_OUT: Final = (
    "that document lists fields as always there whose default is null; the API itself leaves them "
    "out, as replies here do, since clients that check replies take no null for them"
)
_EXPECTED: Final = {
    "openai-chat: chat-image-input": _TEXT_ALONE,
    "open-responses: image-input": _TEXT_ALONE,
    "anthropic: anth-image-input": _TEXT_ALONE,
    "anthropic: anth-basic-response": _LEFT_OUT,
    "anthropic: anth-system-prompt": _LEFT_OUT,
    "anthropic: anth-multi-turn": _LEFT_OUT,
    "anthropic: anth-tool-calling": _LEFT_OUT,
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
_TRIES: Final = 3
"""It asks without a seed, and a small model may go on until its context is full. What failed is
asked again, and the page says so."""


def judge(target: Target) -> int:
    """Write the report; 1 if a test failed that should not."""
    expected = _EXPECTED | (_WITHOUT_TOOLS if target.is_default else {})
    found: list[Finding] = []
    for name, options in _FORMATS.items():
        tries = [expecting(findings(name, _run(name, options, target)), expected)]
        while len(tries) < _TRIES and any(it.result == "failed" for it in best(tries)):
            tries.append(expecting(findings(name, _run(name, options, target)), expected))
        found += best(tries)
    tried = (
        "Its tests of three APIs, by the specifications that it carries with it. It asks without a "
        f"seed, so replies differ: what fails is tried {_TRIES} times."
    )
    command = f"python -m bench.judges llm_comply{target.option}"
    judged = Report(f"llm-comply {version('llm-comply')}", command, tried, found)
    return keep("llm-comply", judged, target)


def best(tries: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Of each test the first try that did not fail, with what failed before it."""
    return [_best(of_one) for of_one in zip(*tries, strict=True)]


def _best(tries: tuple[Finding, ...]) -> Finding:
    for number, finding in enumerate(tries):
        if finding.result != "failed":
            before = "; ".join(it.said for it in tries[:number])
            at = f"at try {number + 1}, after: {before}; {finding.said}".rstrip("; ")
            return replace(finding, said=at) if number else finding
    return tries[0]


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


def findings(name: str, found: Mapping[str, Any]) -> list[Finding]:
    """One for each test of an API."""
    return [_finding(name, it) for it in found["results"]]


def _finding(name: str, result: Mapping[str, Any]) -> Finding:
    said = [*result.get("errors", ()), *(f"warning: {it}" for it in result.get("warnings", ()))]
    status = "left out by the judge" if result["status"] == "skipped" else result["status"]
    return Finding(f"{name}: {result['id']}", status, "; ".join(said))
