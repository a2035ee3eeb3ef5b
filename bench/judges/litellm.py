"""LiteLLM, as its users point it at a mesh, in an environment of its own: it does not go with
versions that are pinned here."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Final

from bench.harness.provenance import ROOT
from bench.judges.environments import environment, version_of
from bench.judges.report import NO_TOOLS, Finding, Report, expecting, keep
from bench.judges.target import Target

_PACKAGES: Final = ("litellm>=1.106,<2", "mcp")
_MAX_RUN_S: Final = 480


def judge(target: Target) -> int:
    """Write the report; 1 if LiteLLM did not get what it asked for."""
    programs = environment("litellm", *_PACKAGES)
    finished = subprocess.run(
        [str(programs / "python"), "-m", "bench.judges.programs.litellm_client"],
        env={
            **os.environ,
            "OUTRIDER_JUDGED": json.dumps([target.url, target.key, target.model]),
            "PYTHONPATH": str(ROOT),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # instead of asking its authors for it
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=_MAX_RUN_S,
        check=True,
    )
    expected = {"a tool": NO_TOOLS} if target.is_default else {}
    report = Report(
        f"litellm {version_of(programs, 'litellm')}",
        f"python -m bench.judges litellm{target.option}",
        "`completion(model='openai/...', api_base=...)` as its users have it.",
        expecting(findings(finished.stdout), expected),
    )
    return keep("litellm", report, target)


def findings(printed: str) -> list[Finding]:
    """What the program printed; other lines are of its libraries."""
    return [Finding(**json.loads(line)) for line in printed.splitlines() if line.startswith("{")]
