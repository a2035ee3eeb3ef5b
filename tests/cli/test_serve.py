"""`outrider serve` as a process: its configuration file is read again on SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import process as service_process
from outrider.cli.serve import Role, serve
from outrider.process import PARENT_VARIABLE, Ports, read_ports
from outrider.rpc import make_channel
from outrider.testing import eventually
from outrider.tls import Role as TlsRole
from outrider.v1 import router_pb2, router_pb2_grpc
from services.router.processes import group as router_group

REPLICA = """
[[router.replicas]]
name = "late"
region = "local"
address = "127.0.0.1:9"
"""


@contextmanager
def serving(config: Path, ready_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A router of its own process, which is told a region that the file does not get changed."""
    command = (sys.executable, "-m", "outrider.cli.main", "serve", "router")
    files = ("--config", str(config), "--ready-file", str(ready_file))
    flags = (*files, "--set", "region=mine", "--set", "port=0")
    with subprocess.Popen((*command, *flags), stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


async def replicas(ports: Ports) -> list[str]:
    async with make_channel(f"127.0.0.1:{ports.main}", role=TlsRole.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        answer = await stub.ListReplicas(router_pb2.ListReplicasRequest())
        router = await stub.GetRouter(router_pb2.GetRouterRequest())
        assert router.region == "mine"
    return [replica.name for replica in answer.replicas]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def ignores_hangup(process: subprocess.Popen[bytes]) -> bool:
    """As the kernel says (proc_pid_status(5))."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigIgn:")]
    return bool(int(mask, 16) & 1 << (signal.SIGHUP - 1))


async def test_a_hangup_before_anybody_listens_for_it_ends_nothing(tmp_path: Path) -> None:
    config, ready_file = tmp_path / "router.toml", tmp_path / "ready.json"
    write(config, "[router]\n")
    with serving(config, ready_file) as process:
        await eventually(lambda: ignores_hangup(process))
        process.send_signal(signal.SIGHUP)
        await eventually(lambda: read_ports(ready_file) is not None)


async def test_a_hangup_reads_the_file_again_and_ends_nothing(tmp_path: Path) -> None:
    config, ready_file = tmp_path / "router.toml", tmp_path / "ready.json"
    write(config, '[router]\nregion = "theirs"\ndrain_s = 0.0\n')
    with serving(config, ready_file) as process:
        await eventually(lambda: read_ports(ready_file) is not None)
        ports = read_ports(ready_file)
        assert ports is not None and await replicas(ports) == []

        write(config, '[router]\nregion = "yours"\ndrain_s = 1.0\n' + REPLICA)
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while await replicas(ports) != ["late"]:
                await asyncio.sleep(0.02)
        process.terminate()
        _, told = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert b"config_needs_restart" in told and b"drain_s" in told
    assert b"config_applied" in told


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("is_told", [True, False])
def test_what_a_supervisor_starts_knows_that_it_has_a_parent(
    monkeypatch: pytest.MonkeyPatch, num_processes: int, is_told: bool
) -> None:
    """Else the kernel's word of a killed one, said twice, would end it with its chats."""
    found: list[bool] = []

    def run(serve: object, config: object, *, has_parent: bool, **_: Any) -> None:
        found.append(has_parent)

    class Opened:
        count = num_processes

    monkeypatch.setattr(service_process, "run", run)
    monkeypatch.setattr(router_group, "open_group", lambda config: Opened())
    if is_told:
        monkeypatch.setenv(PARENT_VARIABLE, "1")
    serve(Role.router, settings=["port=0", f"processes={num_processes}"])
    assert found == [is_told]
    assert PARENT_VARIABLE not in os.environ, "its own children are not told"
