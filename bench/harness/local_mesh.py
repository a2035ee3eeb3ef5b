"""A mesh of real processes for benchmarks and end-to-end tests, started as users start it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.harness.run_folder import run_folder
from outrider.cli.local.admin_page import read_page
from outrider.cli.local.certificates import of_process
from outrider.cli.local.state import RunningMesh, running_mesh
from outrider.models.catalog import DEFAULT_MODEL
from outrider.tls import Tls


@dataclass(frozen=True, slots=True)
class LocalMesh:
    """A mesh that is up."""

    state_dir: Path
    state: RunningMesh

    @property
    def edge(self) -> tuple[str, int]:
        """Host and UDP port of the edge."""
        return self.state.host, self.state.service("edge")["port"]

    @property
    def ca(self) -> Path:
        """The edge's development certificate."""
        return self.state_dir / "tls" / "cert.pem"

    def address(self, name: str) -> str:
        """gRPC address of a service."""
        return f"{self.state.host}:{self.state.service(name)['port']}"

    def metric(self, name: str, metric: str) -> float:
        """Sum of a metric of a service now, over all its labels. Raises UnavailableError."""
        page = read_page(self.state.host, self.state.service(name)["admin_port"])
        samples = (it for family in text_string_to_metric_families(page) for it in family.samples)
        return sum(it.value for it in samples if it.name == metric)

    def tls(self, name: str) -> Tls:
        """The certificates of that process of the mesh, to call others in its name."""
        return Tls.open(of_process(self.state_dir, name))

    def services(self, role: str) -> list[dict[str, Any]]:
        """Rows of all services of a role."""
        return [row for row in self.state.services if row["role"] == role]


def outrider(
    *arguments: str, check: bool = True, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one `outrider` command with `given` as its input, and capture what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "outrider.cli.main", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=check,
    )


@contextlib.contextmanager
def local_mesh(
    *,
    settings: Sequence[str] = (),
    engine: str = "openvino",
    threads: int = 1,
    regions: str = "us-east,eu-west",
    plaintext: bool = False,
    model: str = "",
    more_models: Sequence[str] = (),
    http: bool = False,
    config: Path | None = None,
    shape: Sequence[str] = (),
) -> Iterator[LocalMesh]:
    """Start a mesh, of two regions by default, and stop it whatever happens. It serves `model`, the
    default one if that is empty, and `more_models`; with `http` also over HTTP, at a free port.
    `settings` count before those in the file `config`; `shape` are more flags of `outrider up`. If
    the block raises an exception, the mesh's folder is kept, with its logs."""
    with run_folder("mesh") as files:
        folder = str(files.path)
        started = outrider(
            *(
                "up",
                "--detach",
                "--port",
                "0",
                "--http-port",
                "0" if http else "-1",
                "--regions",
                regions,
                "--engine",
                engine,
            ),
            *("--threads", str(threads), "--state-dir", folder),
            *(f"--set={setting}" for setting in settings),
            *shape,
            *(("--plaintext",) if plaintext else ()),
            *(("--config", str(config)) if config is not None else ()),
            *(f"--model={name}" for name in _models(model, more_models)),
            check=False,
        )
        if started.returncode:
            raise RuntimeError(started.stderr)
        try:
            state = running_mesh(Path(folder))
            if state is None:
                raise RuntimeError(f"the mesh went away:\n{started.stderr}")
            yield LocalMesh(Path(folder), state)
        finally:
            outrider("down", "--state-dir", folder, check=False)


def _models(model: str, more: Sequence[str]) -> Sequence[str]:
    if not more:
        return (model,) if model else ()
    return (model or DEFAULT_MODEL.name, *more)
