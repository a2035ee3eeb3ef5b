"""An edge, a router and the paced replica, in processes as `outrider up` starts them: mutual TLS,
uvloop, no draft model. Limits per address are raised: all clients come from this machine."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.cost.replica import CONTEXT_TOKENS
from bench.harness.processes import child, read_json, write_json
from outrider.children import PipedProcess
from outrider.cli.local import development_key
from outrider.cli.local.certificates import Certificates
from outrider.cli.local.mesh import KEYS_FILE
from outrider.models.catalog import DEFAULT_MODEL
from outrider.process import Ports, read_ports
from outrider.testing import free_tcp_port
from outrider.tls import Role
from outrider.tls.config import TlsConfig

_REGION: Final = "local"
_START_S: Final = 60.0
_MANY: Final = 4096
_REPLICA: Final[Mapping[str, object]] = {
    "scheduler.max_sessions": 1000,
    "scheduler.max_queue": _MANY,
    "scheduler.max_batch_tokens": 16_384,
    "scheduler.max_tick_ms": 10_000.0,
    "scheduler.low_tick_ms": 10_000.0,
    "warm_up_rows": 0,
    "learnt.keep": "false",
    "log_level": "error",
}
_ROUTER: Final[Mapping[str, object]] = {
    "default_model": DEFAULT_MODEL.name,
    "max_sessions_per_stream": 1024,
    "admission.max_above_low_per_address": _MANY,
    "admission.slo_ttft_medium_ms": 60_000.0,
    "admission.slo_ttft_low_ms": 60_000.0,
    "log_level": "error",
}
_EDGE: Final[Mapping[str, object]] = {
    "drafter.model": "none",
    "max_context_tokens": CONTEXT_TOKENS,
    "learnt.keep": "false",
    "log_level": "error",
    **{
        f"quic.{name}": _MANY
        for name in (
            *("max_connections", "max_connections_per_address", "max_chats_per_address"),
            *("max_chats_per_client", "max_streams_per_address"),
        )
    },
    "quic.loop_share_per_address": 1.0,
    "http.max_connections": _MANY,
}


@dataclass(slots=True)
class CostMesh:
    """A mesh that is up."""

    ca: Path
    key: str
    edge: Ports
    replica: PipedProcess
    pids: dict[str, int] = field(default_factory=dict)
    """By role."""

    async def ask(self, **settings: float) -> dict[str, Any]:
        """What the replica's engine has done, once it has these settings."""
        write_json(self.replica, settings)
        return await read_json(self.replica)


@contextlib.asynccontextmanager
async def cost_mesh() -> AsyncIterator[CostMesh]:
    """Up until the context ends."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-cost-")))
        certificates = Certificates(folder)
        tls = {
            role: certificates.issue(role, _REGION, name=role.value)
            for role in (Role.INFERENCE, Role.ROUTER, Role.EDGE)
        }
        environ = {
            f"OUTRIDER_INFERENCE_{name.upper().replace('.', '_')}": str(value)
            for name, value in {
                **_REPLICA,
                **_paths(tls[Role.INFERENCE]),
                "port": 0,
                "admin.port": 0,
                "region": _REGION,
                "state_dir": folder / "replica",
            }.items()
        }
        replica = await stack.enter_async_context(
            child(sys.executable, "-m", "bench.cost.replica", environ=environ)
        )
        async with asyncio.timeout(_START_S):
            port = (await read_json(replica))["port"]
        router_port = free_tcp_port()
        file = folder / "router.toml"
        file.write_text(
            f'[[router.replicas]]\nname = "replica"\nregion = "{_REGION}"\n'
            f'address = "127.0.0.1:{port}"\n',
            encoding="utf-8",
        )
        router_settings = {
            **_ROUTER,
            **_paths(tls[Role.ROUTER]),
            "port": router_port,
            "admin.port": 0,
            "region": _REGION,
        }
        router, _ = await _service(stack, "router", router_settings, folder, "--config", str(file))
        key, _ = development_key.ensure(folder)
        edge_settings = {
            **_EDGE,
            **_paths(tls[Role.EDGE]),
            "port": 0,
            "admin.port": 0,
            "http.port": 0,
            "region": _REGION,
            "routers": f"127.0.0.1:{router_port}",
            "state_dir": folder,
            "access.keys_file": folder / KEYS_FILE,
        }
        edge, ports = await _service(stack, "edge", edge_settings, folder)
        pids = {"edge": edge.pid, "router": router.pid, "replica": replica.pid}
        yield CostMesh(folder / "tls" / "cert.pem", key, ports, replica, pids)


async def _service(
    stack: contextlib.AsyncExitStack,
    role: str,
    settings: Mapping[str, object],
    folder: Path,
    *flags: str,
) -> tuple[PipedProcess, Ports]:
    """A service, once it is ready."""
    ready = folder / f"{role}.json"
    command = [sys.executable, "-m", "outrider.cli.main", "serve", role, *flags]
    command += ["--ready-file", str(ready)]
    environ = {
        f"OUTRIDER_{role.upper()}_{name.upper().replace('.', '_')}": str(value)
        for name, value in settings.items()
    }
    process = await stack.enter_async_context(child(*command, environ=environ, silent=False))
    async with asyncio.timeout(_START_S):
        while (ports := read_ports(ready)) is None:
            if process.returncode is not None:
                raise RuntimeError(f"the {role} ended with exit status {process.returncode}")
            await asyncio.sleep(0.05)
    return process, ports


def _paths(tls: TlsConfig) -> dict[str, object]:
    return {
        "tls.certificate": tls.certificate,
        "tls.private_key": tls.private_key,
        "tls.ca": tls.ca,
    }
