"""A Redis on a host, which keeps nothing over its death."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Final

from bench.regions.hosts import Host
from outrider import children
from outrider.children import ChildProcess

PORT: Final = 6379
_LOOPBACK: Final = "127.0.0.1"


def url_of(host: str = _LOOPBACK) -> str:
    """Of the Redis on a host, by address; for processes of that host without one."""
    return f"redis://{host}:{PORT}/0"


class Redis:
    """One server; not started yet."""

    def __init__(
        self, host: Host, binary: Path, log: Path, *, is_for_all_hosts: bool = False
    ) -> None:
        """On its host's loopback, unless it `is_for_all_hosts`."""
        address = host.address if is_for_all_hosts else _LOOPBACK
        self._command = (
            *(*host.within, str(binary), "--port", str(PORT), "--bind", address),
            # Hosts of a bench have no others that could reach it.
            *("--protected-mode", "no" if is_for_all_hosts else "yes"),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"),
        )
        self._log = log
        self._process: ChildProcess | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None and self._process.returncode is None:
            return
        with self._log.open("ab") as sink:
            self._process = children.start(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                ends_with_parent=signal.SIGTERM,
            )

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
