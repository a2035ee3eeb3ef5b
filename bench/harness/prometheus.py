"""A real Prometheus that scrapes a mesh and evaluates its rules: Debian's, as `tools/setup.sh dev`
unpacks it, or the machine's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.local_mesh import LocalMesh
from bench.harness.run_folder import run_folder
from outrider.free_ports import free_tcp_port

ROOT: Final = Path(__file__).parents[2]
RULES: Final = tuple(
    ROOT / "deploy" / "prometheus" / name for name in ("alerts.yml", "short-names.yml")
)
_START_LIMIT_S: Final = 60.0
_UNPACKED: Final = ROOT / ".tools" / "prometheus" / "usr" / "bin"


def program(name: str) -> Path:
    """Path of `prometheus` or `promtool`. Raises FileNotFoundError, which says how to get it."""
    if os.access(_UNPACKED / name, os.X_OK):
        return _UNPACKED / name
    if (found := shutil.which(name)) is not None:
        return Path(found)
    raise FileNotFoundError(
        f"there is no {name}: install prometheus, or run tools/setup.sh dev on Debian"
    )


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Rows of an instant query now. Raises ValueError for one that Prometheus refuses."""
        return list(self._get("query", query=expression)["result"])

    def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        """Series of a range query, times in Unix seconds."""
        times = {"start": str(start_s), "end": str(end_s), "step": str(step_s)}
        return list(self._get("query_range", query=expression, **times)["result"])

    def exemplars(self, selector: str) -> list[dict[str, Any]]:
        """Exemplars of these series since yesterday."""
        now = time.time()
        found = self._get("query_exemplars", query=selector, start=str(now - 86_400), end=str(now))
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def targets(self) -> list[dict[str, Any]]:
        """Scraped endpoints, with their health."""
        return list(self._get("targets")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with the errors of their last evaluation."""
        groups = self._get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        return False

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from error


def jobs_of(mesh: LocalMesh) -> dict[str, list[str]]:
    """Admin addresses of a mesh's services, by role."""
    found: dict[str, list[str]] = {}
    for row in mesh.state.services:
        found.setdefault(str(row["role"]), []).append(f"{mesh.state.host}:{row['admin_port']}")
    return found


@contextlib.contextmanager
def running_prometheus(
    jobs: Mapping[str, Sequence[str]],
    *,
    interval_s: float = 1.0,
    evaluation_s: float = 1.0,
    rules: Sequence[Path] = RULES,
) -> Iterator[Prometheus]:
    """Scrape the addresses of each job every `interval_s`, and evaluate `rules` every
    `evaluation_s`, until the block ends."""
    with run_folder("prometheus") as files:
        config = files.path / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps(_config(jobs, interval_s, evaluation_s, rules)), "utf-8")
        address = f"127.0.0.1:{free_tcp_port()}"
        with (files.path / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={files.path / 'data'}",
                    f"--web.listen-address={address}",
                    "--enable-feature=exemplar-storage",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            found = Prometheus(f"http://{address}")

            deadline = time.monotonic() + _START_LIMIT_S
            while not found.is_ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (files.path / "log").read_text("utf-8")
                    raise RuntimeError(f"prometheus did not start:\n{said}")
                time.sleep(0.05)
            yield found
        finally:
            process.terminate()
            process.wait()


def _config(
    jobs: Mapping[str, Sequence[str]],
    interval_s: float,
    evaluation_s: float,
    rules: Sequence[Path],
) -> dict[str, object]:
    return {
        "global": {
            "scrape_interval": f"{round(interval_s * 1e3)}ms",
            "evaluation_interval": f"{round(evaluation_s * 1e3)}ms",
        },
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": True,
                "static_configs": [{"targets": list(targets)}],
            }
            for job, targets in jobs.items()
        ],
    }
