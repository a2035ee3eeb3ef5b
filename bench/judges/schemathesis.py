"""schemathesis: requests made from the OpenAPI document, good ones and bad ones, and whether every
answer is one that the document tells of. It asks a few thousand times, for a few minutes at most.

One of its checks is left out: that every request that fits the document is served. No document says
that a chat needs some text, or that a prompt has to fit into the context.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.harness.provenance import ROOT
from bench.judges.environments import environment
from bench.judges.report import Finding, Report, keep
from bench.judges.target import Target

PACKAGE: Final = "schemathesis==4.32.5"
_NUM_EXAMPLES: Final = 60
_MAX_RUN_S: Final = 480
_REQUEST_TIMEOUT_S: Final = 60
"""A request may ask for a reply that fills the context."""
_SEED: Final = 1
_COUNTED: Final = re.compile(r"^ *\d[\d,]* generated.*$", re.MULTILINE)


def judge(target: Target) -> int:
    """Write the report; 1 if an answer failed a check."""
    with_key, told = _run(target, target.key)
    found, told = _named("with a key", with_key), f"{told} with a key"
    if target.key:
        # Everything is refused, and that is to be done as the document says too.
        without_key, told_without = _run(target, "")
        found += _named("without", without_key)
        told += f", {told_without} without"
    tried = (
        f"Requests made from `/openapi.json`, good ones and bad ones: {told}. No answer may be a "
        "5xx, but for 504 to a request with a deadline and 503 to one that names regions, both at "
        "random; and each has to be one that the document tells of: status, type, shape, methods, "
        "credentials. Good requests get the model's name, and every other one a conversation that "
        "can be answered, so that some are served. That every request that fits the document is "
        "served is not checked: no document says that a chat needs some text."
    )
    command = f"python -m bench.judges schemathesis{target.option}"
    return keep("schemathesis", Report(PACKAGE.replace("==", " "), command, tried, found), target)


def _run(target: Target, key: str) -> tuple[list[Finding], str]:
    """What it found, and how much it asked."""
    program = environment("schemathesis", PACKAGE) / "schemathesis"
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "junit.xml"
        statuses = Path(folder) / "statuses"
        credential = ("--header", f"Authorization: Bearer {key}") if key else ()
        finished = subprocess.run(
            [
                *(str(program), "run", f"{target.origin}/openapi.json", *credential),
                *("--phases", "coverage,fuzzing", "--max-examples", str(_NUM_EXAMPLES)),
                *("--exclude-checks", "positive_data_acceptance", "--continue-on-failure"),
                *("--request-timeout", str(_REQUEST_TIMEOUT_S), "--workers", "2"),
                *("--seed", str(_SEED), "--no-shrink", "--no-color"),
                *("--report-junit-path", str(results)),
            ],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "bench.judges.programs.schemathesis_hooks",
                "OUTRIDER_MODEL": target.model,
                "OUTRIDER_STATUSES": str(statuses),
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=_MAX_RUN_S,
            check=False,
        )
        print(finished.stdout, file=sys.stderr)
        if not results.exists():
            raise RuntimeError(f"schemathesis ended with status {finished.returncode}")
        found = findings(results.read_text(encoding="utf-8"))
        answers = Counter(statuses.read_text(encoding="ascii").split())
    counted = ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))
    return found, f"{num_requests(finished.stdout)} (answers: {counted})"


def _named(how: str, found: list[Finding]) -> list[Finding]:
    return [replace(finding, what=f"{finding.what}, {how}") for finding in found]


def findings(junit: str) -> list[Finding]:
    """One for each operation."""
    cases = ElementTree.fromstring(junit).iter("testcase")
    return sorted(map(_finding, cases), key=lambda finding: finding.what)


def _finding(case: ElementTree.Element) -> Finding:
    wrong = [part for part in case if part.tag in ("failure", "error")]
    said = "; ".join(f"{part.get('message', '')} {part.text or ''}" for part in wrong)
    return Finding(case.get("name", ""), "failed" if wrong else "passed", said)


def num_requests(told: str) -> str:
    """The line that says how many."""
    found = _COUNTED.search(told)
    return found.group().strip() if found else "not told how many"
