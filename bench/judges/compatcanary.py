"""compatcanary: seven things that programs do with an API of OpenAI's, as its authors see them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Final

from bench.judges.environments import npm_package
from bench.judges.report import NO_TOOLS, Finding, Report, expecting, keep
from bench.judges.target import Target

VERSION: Final = "0.2.2"
_WITHOUT_TOOLS: Final = {"Forced tool call": NO_TOOLS}
_REQUEST_TIMEOUT_S: Final = 60
_MAX_RUN_S: Final = 480


def judge(target: Target) -> int:
    """Write the report; 1 if a probe failed."""
    scanner = npm_package("compatcanary", VERSION) / "src" / "cli.js"
    finished = subprocess.run(
        [
            *("node", str(scanner), "scan", "--base-url", target.url, "--model", target.model),
            *("--format", "json", "--fail-on", "never", "--timeout", str(_REQUEST_TIMEOUT_S)),
        ],
        env={**os.environ, "OPENAI_API_KEY": target.key},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_MAX_RUN_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(finished.stdout)
    tried = f"It gives {found['score']} points of 100."
    command = f"python -m bench.judges compatcanary{target.option}"
    seen = expecting(findings(found), _WITHOUT_TOOLS if target.is_default else {})
    judged = Report(f"compatcanary {VERSION}", command, tried, seen)
    return keep("compatcanary", judged, target)


def findings(found: dict[str, Any]) -> list[Finding]:
    """One for each probe; a warning counts as a failure."""
    return [
        Finding(
            it["name"], "passed" if it["status"] == "pass" else "failed", str(it.get("summary", ""))
        )
        for it in found["results"]
    ]
