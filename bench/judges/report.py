"""Reports of judges, in Markdown under docs/judges."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.harness.provenance import ROOT, commit
from bench.judges.target import Target

FOLDER: Final = ROOT / "docs" / "judges"
NO_TOOLS: Final = "the model's chat template shows no tools, so chats with tools are refused"
"""Of the default model. Judged with one that has them, these tests have to pass."""
_PASSED: Final = "passed"
_FAILED: Final = "failed"
_EXPECTED: Final = "failed, as expected"
_SURPRISING: Final = "passed, not expected"
_MAX_CELL_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """What a judge says of one thing that it tried."""

    what: str
    result: str
    """passed; failed; failed, as expected; passed, not expected; left out by the judge."""
    said: str = ""


def expecting(found: Iterable[Finding], expected: Mapping[str, str]) -> list[Finding]:
    """The findings, with the reason for those that are expected to fail. One of these that passed
    counts as a failure, so that the reasons stay true."""
    return [_expecting(finding, expected.get(finding.what)) for finding in found]


def _expecting(finding: Finding, why: str | None) -> Finding:
    if why is None or finding.result not in (_PASSED, _FAILED):
        return finding
    if finding.result == _PASSED:
        return replace(finding, result=_SURPRISING, said=f"expected to fail: {why}")
    # Its own words too: a test may fail for another reason than is expected.
    said = f"{why} (it says: {finding.said})" if finding.said else why
    return replace(finding, result=_EXPECTED, said=said)


@dataclass(frozen=True, slots=True)
class Report:
    """What a judge says."""

    judge: str
    """Its name and version."""
    command: str
    tried: str
    """What it does, in a sentence or a few."""
    findings: Sequence[Finding]

    @property
    def num_failed(self) -> int:
        """Of those that should not, and those that passed though nobody expected it."""
        return sum(finding.result in (_FAILED, _SURPRISING) for finding in self.findings)

    def markdown(self, model: str, made: str) -> str:
        """The page; `made`: of which commit."""
        num_passed = sum(finding.result == _PASSED for finding in self.findings)
        num_expected = sum(finding.result == _EXPECTED for finding in self.findings)
        num_other = len(self.findings) - num_passed - num_expected - self.num_failed
        left_out = f", {num_other} left out by the judge" if num_other else ""
        passed = [
            f"- {_cell(it.what)}: {_cell(it.said)}" if it.said else f"- {_cell(it.what)}"
            for it in self.findings
            if it.result == _PASSED
        ]
        others = [
            f"| {_cell(it.what)} | {it.result} | {_cell(it.said)} |"
            for it in self.findings
            if it.result != _PASSED
        ]
        table = ("", "| what | result | what it says |", "| --- | --- | --- |", *others)
        return "\n".join(
            (
                f"# {self.judge}",
                "",
                f"Against a mesh that serves {model}. {self.tried}",
                "",
                f"{num_passed} of {len(self.findings)} passed, {num_expected} failed as expected, "
                f"{self.num_failed} failed that should not{left_out}.",
                *(table if others else ()),
                *(("", "Passed:", "", *passed) if passed else ()),
                "",
                f"<sub>`{self.command}`, {made}</sub>",
                "",
            )
        )


def keep(name: str, report: Report, target: Target, folder: Path = FOLDER) -> int:
    """Write it, and return the status that its command ends with. Models other than the default
    one have pages of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{name}.md" if target.is_default else f"{name}.{target.model}.md")
    path.write_text(report.markdown(target.told, f"commit {commit()}"), encoding="utf-8")
    print(f"{report.num_failed} failed; wrote {path}", file=sys.stderr)
    return int(report.num_failed > 0)


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _MAX_CELL_CHARS else f"{line[: _MAX_CELL_CHARS - 1]}…"
