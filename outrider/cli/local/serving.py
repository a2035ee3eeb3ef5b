"""Who in a mesh serves a model, asked of the processes themselves."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outrider.cli import operator
from outrider.errors import UnavailableError, UnknownModelError
from outrider.process import Ports
from outrider.tls.identity import Role

if TYPE_CHECKING:
    import grpc.aio

_TIMEOUT_S: Final = 5.0
_SESSIONS: Final = re.compile(
    r"^outrider_(?:sessions_(?:running|queued|paused)|embedding_waiting_inputs)(?:\{.*\})? (\S+)$",
    re.MULTILINE,
)

_SERVED: Final = re.compile(r'^outrider_edge_served_models\{model="([^"]+)"\} 1', re.MULTILINE)


def read_metrics(host: str, admin_port: int) -> str:
    """What a process tells at /metrics. Raises UnavailableError."""
    return _read(host, admin_port, "/metrics")


def _read(host: str, admin_port: int, path: str) -> str:
    connection = http.client.HTTPConnection(host, admin_port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode("utf-8")
    except (OSError, http.client.HTTPException) as error:
        why = f"{host}:{admin_port} does not answer {path}: {error}"
        raise UnavailableError(why) from error
    finally:
        connection.close()


class Asking:
    """Asks the processes of a mesh on this machine, as its operator."""

    def __init__(self, state_dir: Path, host: str) -> None:
        self._state_dir = state_dir
        self._host = host

    async def serves(self, role: str, ports: Ports, model: str) -> int:
        """How many at this process: replicas that a router may send chats to; for an edge or a
        tokenizer 1 or 0. Raises UnavailableError."""
        if role == "router":
            return await self._of_router(ports, model)
        if role == "tokenizer":
            return await self._of_tokenizer(ports, model)
        return await self._of_edge(ports, model)

    async def refused(self, ports: Ports, file: Path) -> str:
        """Why a process refuses what its configuration file holds now; "" if it does not, or has
        not read it yet."""
        return await asyncio.to_thread(self._refused, ports.admin, file)

    async def sessions(self, ports: Ports) -> int:
        """Chats at a replica, those that wait too; 0 for one that does not answer: it has none."""
        try:
            text = await asyncio.to_thread(read_metrics, self._host, ports.admin)
        except UnavailableError:
            return 0
        return sum(round(float(value)) for value in _SESSIONS.findall(text))

    def _refused(self, admin_port: int, file: Path) -> str:
        try:
            digest = sha256(file.read_bytes()).hexdigest()
            told = json.loads(_read(self._host, admin_port, "/config"))
            return str(told["refused"]) if told["sha256"] == digest else ""
        except (OSError, ValueError, LookupError, TypeError, UnavailableError):
            return ""  # it is not there, or follows no file: who waits says so in the end

    async def _of_router(self, ports: Ports, model: str) -> int:
        from outrider.v1 import router_pb2, router_pb2_grpc

        async with self._channel(ports, Role.ROUTER) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(
                channel
            )
            listed = await stub.ListReplicas(router_pb2.ListReplicasRequest(), timeout=_TIMEOUT_S)
        ready = router_pb2.REPLICA_STATE_READY
        return sum(it.model == model and it.state == ready for it in listed.replicas)

    async def _of_tokenizer(self, ports: Ports, model: str) -> int:
        from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc

        try:
            async with self._channel(ports, Role.TOKENIZER) as channel:
                stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
                stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
                request = tokenizer_pb2.CountRequest(model=model, text="a")
                await stub.Count(iter([request]), timeout=_TIMEOUT_S)
        except UnknownModelError:
            return 0
        return 1

    async def _of_edge(self, ports: Ports, model: str) -> int:
        # Its clients are told only of models that they may use without a key.
        text = await asyncio.to_thread(read_metrics, self._host, ports.admin)
        return int(model in _SERVED.findall(text))

    @asynccontextmanager
    async def _channel(self, ports: Ports, role: Role) -> AsyncIterator[grpc.aio.Channel]:
        """Refusals are raised as our errors."""
        # Imported here: `outrider --help` does without.
        import grpc.aio

        from outrider.rpc import from_rpc_error, make_channel

        tls = operator.of_mesh(self._state_dir)
        async with make_channel(f"{self._host}:{ports.main}", tls=tls, role=role) as channel:
            try:
                yield channel
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
