"""Write the rules of deploy/prometheus as an object of the Prometheus operator.

python -m tools.prometheus_rules    deploy/components/monitoring/rules.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy"
SOURCES: Final = ("alerts.yml", "short-names.yml")
TARGET: Final = Path("components/monitoring/rules.yaml")


def rules(deploy: Path = DEPLOY) -> dict[str, Any]:
    """The PrometheusRule with every group of the files."""
    groups = [
        group
        for name in SOURCES
        for group in yaml.safe_load((deploy / "prometheus" / name).read_text("utf-8"))["groups"]
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "outrider", "labels": {"app.kubernetes.io/part-of": "outrider"}},
        "spec": {"groups": groups},
    }


def text(deploy: Path = DEPLOY) -> str:
    """What the file has to say."""
    head = "# Written by `python -m tools.prometheus_rules` from deploy/prometheus: change those.\n"
    # Strings with quotation marks as the linter has them.
    return head + yaml.safe_dump(rules(deploy), sort_keys=False, width=100, indent=2)


def rule_problems(deploy: Path = DEPLOY) -> list[str]:
    """Whether the written file is what the rules make; empty: it is."""
    written = yaml.safe_load((deploy / TARGET).read_text("utf-8"))
    return [] if written == rules(deploy) else [f"{TARGET}: run `python -m tools.prometheus_rules`"]


def main() -> int:
    (DEPLOY / TARGET).write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
