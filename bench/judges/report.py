"""Reports of judges, in Markdown under docs/judges."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.harness.provenance import ROOT, commit

FOLDER: Final = ROOT / "docs" / "judges"
_MAX_CELL_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """What a judge says of one thing that it tried."""

    what: str
    result: str
    """passed, failed, or failed, as expected."""
    said: str = ""


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
        """Of those that should not."""
        return sum(finding.result == "failed" for finding in self.findings)

    def markdown(self, model: str, made: str) -> str:
        """The page; `made`: when, and of which commit."""
        num_passed = sum(finding.result == "passed" for finding in self.findings)
        rows = [f"| {_cell(it.what)} | {it.result} | {_cell(it.said)} |" for it in self.findings]
        return "\n".join(
            (
                f"# {self.judge.partition(' ')[0]}",
                "",
                f"{self.judge} against a mesh that serves {model}. {self.tried}",
                "",
                f"{num_passed} of {len(self.findings)} passed, {self.num_failed} failed that "
                "should not.",
                "",
                "| what | result | what it says |",
                "| --- | --- | --- |",
                *rows,
                "",
                f"<sub>`{self.command}`, {made}</sub>",
                "",
            )
        )


def keep(name: str, report: Report, model: str, folder: Path = FOLDER) -> int:
    """Write it, and return the status that its command ends with."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    made = f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}"
    path.write_text(report.markdown(model, made), encoding="utf-8")
    print(f"{report.num_failed} failed; wrote {path}", file=sys.stderr)
    return int(report.num_failed > 0)


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _MAX_CELL_CHARS else f"{line[: _MAX_CELL_CHARS - 1]}…"
