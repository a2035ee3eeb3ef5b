"""Programs that people use with such APIs, each in an environment of its own: some need a lot, and
niquests takes the place of urllib3."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from typing import Final

from bench.harness.provenance import ROOT
from bench.judges.environments import environment, version_of
from bench.judges.report import NO_TOOLS, Finding, Report, expecting, keep
from bench.judges.target import Target

_MAX_RUN_S: Final = 480
_NAME: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Client:
    """A judge that is a client."""

    name: str
    packages: tuple[str, ...]
    """The first is the one whose version is told."""
    program: str
    """Module under bench.judges.programs."""
    tried: str

    def judge(self, target: Target) -> int:
        """Write the report; 1 if the client did not get what it asked for."""
        programs = environment(self.name, *self.packages)
        judged = {
            "url": target.url,
            "key": target.key,
            "model": target.model,
            "quic_port": target.quic_port,
            "ca": target.ca,
        }
        finished = subprocess.run(
            [str(programs / "python"), "-m", f"bench.judges.programs.{self.program}"],
            env={
                **os.environ,
                "OUTRIDER_JUDGED": json.dumps(judged),
                "PYTHONPATH": str(ROOT),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # instead of asking its authors for it
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=_MAX_RUN_S,
            check=True,
        )
        without_tools = {"a tool": NO_TOOLS}
        found = expecting(findings(finished.stdout), without_tools if target.is_default else {})
        package = distribution(self.packages[0])
        version = f"{package} {version_of(programs, package)}"
        command = f"python -m bench.judges {self.name}{target.option}"
        return keep(self.name, Report(version, command, self.tried, found), target)


def distribution(requirement: str) -> str:
    """The name of what a requirement asks for."""
    found = _NAME.match(requirement)
    return found.group() if found else requirement


def findings(printed: str) -> list[Finding]:
    """What the program printed; other lines are of its libraries."""
    return [Finding(**json.loads(line)) for line in printed.splitlines() if line.startswith("{")]


NIQUESTS: Final = Client(
    "niquests",
    ("niquests[http3]==3.21.2",),
    "http3_client",
    "An HTTP/3 of another implementation than ours (qh3).",
)
LANGCHAIN: Final = Client(
    "langchain",
    ("langchain-openai>=1.7,<2",),
    "langchain_client",
    "`ChatOpenAI(base_url=...)` as its users have it.",
)
LITELLM: Final = Client(
    "litellm",
    ("litellm>=1.106,<2", "mcp"),
    "litellm_client",
    "`completion(model='openai/...', api_base=...)` as its users have it.",
)
