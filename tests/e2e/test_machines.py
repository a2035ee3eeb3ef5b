"""Whoever follows docs/guides/machines.md has a mesh: its scripts and files as they stand, but for
folders, hosts, ports and the engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from bench.harness.local_mesh import outrider
from outrider.process import read_ports
from outrider.testing import free_tcp_port, free_udp_port
from outrider.tls.certificates import utc_now
from services.edge.quic import certificate as edge_certificate
from tests.e2e.test_code_blocks import ROOT, blocks_of

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

PAGE: Final = ROOT / "docs" / "guides" / "machines.md"
FOLDER: Final = "/etc/outrider"
HOST: Final = "127.0.0.1"


def blocks(kind: str) -> list[str]:
    return [it.text for it in blocks_of(PAGE) if it.kind == kind]


@contextmanager
def serving(role: str, folder: Path, config: str, *settings: str) -> Iterator[None]:
    """The unit's command, until the block ends; it serves."""
    (start,) = (it for it in blocks("ini")[0].splitlines() if it.startswith("ExecStart="))
    words = start.removeprefix("ExecStart=/opt/outrider/bin/outrider ").replace("%i", role).split()
    file, ready = folder / f"{role}.toml", folder / f"{role}.json"
    file.write_text(config.replace(FOLDER, str(folder)), "utf-8")
    words = [str(file) if it == f"{FOLDER}/outrider.toml" else it for it in words]
    more = [f"--set={it}" for it in settings]
    with subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", *words, "--ready-file", str(ready), *more]
    ) as process:
        try:
            while read_ports(ready) is None:
                assert process.poll() is None, f"{role} ended"
            yield
        finally:
            process.terminate()


def test_the_guide_for_machines_of_ones_own_leads_to_a_mesh(tmp_path: Path) -> None:
    script, *_ = blocks("sh")
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    ports = {role: free_tcp_port() for role in ("router", "tokenizer", "inference")}
    door = free_udp_port()
    region, edge = blocks("toml")
    region = region.replace("127.0.0.1:7200", f"{HOST}:{ports['tokenizer']}")
    region = region.replace("127.0.0.1:7300", f"{HOST}:{ports['inference']}")
    edge = edge.replace("region.example.net:7100", f"{HOST}:{ports['router']}")
    edge = edge.replace("4433", "0")
    made = edge_certificate.ensure(tmp_path / "made", ["localhost"], utc_now())
    for path, name in zip(made, ("clients.crt", "clients.key"), strict=True):
        path.rename(tmp_path / name)
    keys = ("--keys-file", str(tmp_path / "keys.json"))
    (tmp_path / "key").write_text(outrider("keys", "create", "web-shop", *keys).stdout, "utf-8")
    settings = {
        "inference": ("engine=fake", f"state_dir={tmp_path / 'replica'}"),
        "tokenizer": (),
        "router": (),
    }
    with ExitStack() as running:
        for role, more in settings.items():
            port = f"port={ports[role]}"
            running.enter_context(serving(role, tmp_path, region, port, *more))
        more = (f"port={door}", f"state_dir={tmp_path / 'edge'}", "drafter.model=none")
        running.enter_context(serving("edge", tmp_path, edge, *more))
        done = outrider(
            *("check", "--router", f"{HOST}:{ports['router']}"),
            *("--certificate", str(tmp_path / "operator.crt")),
            *("--private-key", str(tmp_path / "operator.key"), "--ca", str(tmp_path / "ca.crt")),
            *("--edge", f"{HOST}:{door}", "--edge-ca", str(tmp_path / "clients.crt")),
            *("--key-file", str(tmp_path / "key")),
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a chat through it has text from" in done.stdout
