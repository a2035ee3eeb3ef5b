"""Service processes that can be killed and started again where they were."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

from outrider.cli.local.mesh import ProcessSpec, to_toml
from outrider.cli.local.supervisor import die_with_parent
from outrider.process import read_ports
from outrider.testing import free_tcp_port, free_udp_port

HOST = "127.0.0.1"
_START_LIMIT_S = 240.0
_POLL_S = 0.02


class Service:
    """One `outrider serve` process, always on the same ports."""

    def __init__(
        self, name: str, role: str, values: Mapping[str, object], folder: Path, port: int = 0
    ) -> None:
        self.name, self.role = name, role
        self.port = port or (free_udp_port() if role == "edge" else free_tcp_port())
        given = {"host": HOST, "port": self.port, "admin_port": 0, "log_level": "error"}
        self._config, self._ready = (folder / f"{name}.{kind}" for kind in ("toml", "json"))
        self._log = folder / f"{name}.log"
        spec = ProcessSpec(name, role, {**given, "drain_s": 0.0, **values})
        self._config.write_text(to_toml(spec), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self.num_kills = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self.port}"

    def spawn(self) -> None:
        """Start it."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as sink:
            command = ("-m", "outrider.cli.main", "serve", self.role)
            where = ("--config", str(self._config), "--ready-file", str(self._ready))
            self._process = subprocess.Popen(
                [sys.executable, *command, *where],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                preexec_fn=die_with_parent,
            )

    async def ready(self) -> None:
        """Return once it serves. Raises RuntimeError if it does not come up."""
        limit = time.monotonic() + _START_LIMIT_S
        while read_ports(self._ready) is None:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended while it started; see {self._log}")
            if time.monotonic() > limit:
                raise RuntimeError(f"{self.name} did not start; see {self._log}")
            await asyncio.sleep(_POLL_S)

    async def metrics(self) -> str:
        """Its page of metrics."""
        ports = read_ports(self._ready)
        assert ports is not None
        url = f"http://{HOST}:{ports.admin}/metrics"
        return await asyncio.to_thread(lambda: urlopen(url, timeout=10).read().decode())

    def kill(self) -> None:
        """SIGKILL: nobody is told anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.num_kills += 1

    def signal(self, number: signal.Signals) -> None:
        """Send any other signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Stop it for good, whatever its state."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
