"""A real nginx before an edge: Debian's, as `tools/setup.sh dev` unpacks it, or the machine's."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.testing import free_tcp_port

_ROOT = Path(__file__).parent.parent
_PLACES = (_ROOT / ".tools" / "nginx" / "usr" / "sbin" / "nginx", Path("/usr/sbin/nginx"))
_GUIDE = _ROOT / "docs" / "guides" / "nginx.md"
_MAIN = """
daemon off;
master_process off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {site}
}}
"""


def guide_block(language: str) -> str:
    """The one block of the guide in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", _GUIDE.read_text("utf-8"), re.M | re.S)
    return str(found)


@contextmanager
def nginx(folder: Path, edge_port: int, certificate: Path, key: Path) -> Iterator[int]:
    """Runs with the guide's file, but for ports and certificate; yields its port."""
    port = free_tcp_port()
    site = guide_block("nginx")
    for ours, theirs in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "127.0.0.1:8080": f"127.0.0.1:{edge_port}",
        "/etc/nginx/tls/chat.example.com.pem": str(certificate),
        "/etc/nginx/tls/chat.example.com.key": str(key),
    }.items():
        assert site.count(ours) == 1, f"the guide says {ours} once"
        site = site.replace(ours, theirs)
    folder.mkdir()
    (folder / "nginx.conf").write_text(_MAIN.format(site=site), "utf-8")
    command = [_binary(), "-e", "stderr", "-p", str(folder), "-c", "nginx.conf"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        _wait_until_it_listens(process, port)
        yield port
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert b"[emerg]" not in said and b"[crit]" not in said, said.decode()


def _binary() -> str:
    found = next((str(it) for it in _PLACES if os.access(it, os.X_OK)), shutil.which("nginx"))
    if found is None:
        pytest.fail("there is no nginx: install it, or run tools/setup.sh dev on Debian")
    return found


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    while True:
        if process.poll() is not None:
            raise AssertionError(f"nginx ended: {process.communicate()[1].decode()}")
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
