"""Attacks on the ports between services, and on those for operators."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from bench.hostile.target import Findings, Target
from outrider.cli.local.certificates import of_process
from outrider.rpc import make_channel
from outrider.tls import Tls
from outrider.tls.certificates import utc_now
from outrider.tls.config import TlsConfig
from outrider.tls.development import DevelopmentCa, Issued
from outrider.tls.identity import PeerIdentity, Role, server_name
from outrider.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

Call = Callable[[grpc.aio.Channel], Any]
_Method = tuple[type[Any], str, type[Message] | None]
_REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
)
_MAX_OPEN = 200
_DOMAIN = TlsConfig().trust_domain
_HEADS = (
    b"GET /metrics HTTP/1.1\r\n\r\n",
    b"GET " + b"/" * 9000,
    b"POST / HTTP/1.1\r\n\r\n",
)


async def calls_without_certificate(target: Target, seconds: float, findings: Findings) -> None:
    """Every method of every service, by somebody without a certificate, or with one of a CA of his
    own."""
    own = _own_certificate()
    trusted = _file(of_process(Path(target.state_dir), "operator").ca)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, port in target.services.items():
            address, named = f"{target.host}:{port}", server_name(_role(name), _DOMAIN)
            options = (("grpc.ssl_target_name_override", named),)
            for method, call in _calls(name):
                for channel in (
                    grpc.aio.insecure_channel(address),
                    grpc.aio.secure_channel(
                        address, grpc.ssl_channel_credentials(trusted), options=options
                    ),
                    grpc.aio.secure_channel(
                        address,
                        grpc.ssl_channel_credentials(trusted, own.private_key, own.certificate),
                        options=options,
                    ),
                ):
                    await _refused(channel, call, f"{name}: {method}", findings)


async def calls_of_another_role(target: Target, seconds: float, findings: Findings) -> None:
    """An edge that was taken over asks for what only routers, workers and operators may have."""
    tls = Tls.open(of_process(Path(target.state_dir), "edge"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, port in target.services.items():
            for method, call in _calls(name):
                if method in ("Route", "GetRouter", "ListModels", "GetVocabulary"):  # an edge may
                    continue
                channel = make_channel(f"{target.host}:{port}", tls=tls, role=_role(name))
                await _refused(channel, call, f"edge's certificate, {name}: {method}", findings)


def _own_certificate() -> Issued:
    """Of a router, says a CA that nobody here trusts."""
    now = utc_now()
    return DevelopmentCa(now).issue(PeerIdentity(Role.ROUTER), now)


def _file(path: Path | None) -> bytes:
    assert path is not None, "the mesh has no certificates"
    return path.read_bytes()


def _role(name: str) -> Role:
    """Of the process of this name."""
    return {"router": Role.ROUTER, "tokenizer": Role.TOKENIZER}.get(name, Role.INFERENCE)


async def noise_at_grpc(target: Target, seconds: float, findings: Findings) -> None:
    """Noise, half of a TLS greeting, HTTP/2 of no meaning, at the ports of gRPC."""
    chance = random.Random(5)
    beginnings = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        bytes.fromhex("16030102000100"),
        b"GET / HTTP/1.1\r\n\r\n",
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for port in target.services.values():
            noise = chance.randbytes(chance.randint(1, 4000))
            await _send_at(target.host, port, chance.choice((*beginnings, b"")) + noise, findings)


async def open_sockets(target: Target, seconds: float, findings: Findings) -> None:
    """Connections to every TCP port that say nothing, or one byte at a time."""
    ports = [*target.services.values(), *target.admin_ports.values()]
    writers = []
    for number in range(_MAX_OPEN):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                port = ports[number % len(ports)]
                _, writer = await asyncio.open_connection(target.host, port)
            writers.append(writer)
            findings.count("connections")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for writer in writers:
            with contextlib.suppress(OSError):
                writer.write(b"G")
        await asyncio.sleep(0.5)
    for writer in writers:
        writer.close()


async def admin_floods(target: Target, seconds: float, findings: Findings) -> None:
    """Requests for metrics without end, with headers that are none."""
    chance = random.Random(6)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for port in target.admin_ports.values():
            head = chance.choice(_HEADS)
            await _send_at(target.host, port, head, findings)


def _calls(name: str) -> Iterator[tuple[str, Call]]:
    """What a process of this name can be asked."""
    for stub, method, request in _METHODS.get(name, _OF_REPLICAS):
        yield method, partial(_call, stub, method, request)


def _call(
    stub: type[Any], method: str, request: type[Message] | None, channel: grpc.aio.Channel
) -> Any:
    return getattr(stub(channel), method)(_nothing() if request is None else request())


async def _nothing() -> AsyncIterator[Any]:
    """A stream on which nothing comes for a while, and then it ends."""
    await asyncio.sleep(0.2)
    for message in tuple[Any, ...]():
        yield message


_OF_REPLICAS: Sequence[_Method] = (
    (inference_pb2_grpc.InferenceServiceStub, "Generate", None),
    (inference_pb2_grpc.InferenceServiceStub, "WatchLoad", inference_pb2.WatchLoadRequest),
    (inference_pb2_grpc.InferenceServiceStub, "WatchKv", inference_pb2.WatchKvRequest),
)
_METHODS: Mapping[str, Sequence[_Method]] = {
    "router": (
        (router_pb2_grpc.RouterServiceStub, "Route", None),
        (router_pb2_grpc.RouterServiceStub, "Explain", router_pb2.ExplainRequest),
        (router_pb2_grpc.RouterServiceStub, "ListReplicas", router_pb2.ListReplicasRequest),
        (router_pb2_grpc.RouterServiceStub, "GetRouter", router_pb2.GetRouterRequest),
        (router_pb2_grpc.RouterServiceStub, "ListModels", router_pb2.ListModelsRequest),
    ),
    "tokenizer": (
        (tokenizer_pb2_grpc.TokenizerServiceStub, "Encode", None),
        (
            tokenizer_pb2_grpc.TokenizerServiceStub,
            "GetVocabulary",
            tokenizer_pb2.GetVocabularyRequest,
        ),
        (tokenizer_pb2_grpc.TokenizerWorkServiceStub, "Work", None),
    ),
}
"""By process: a service's stub, a method of it, and what it is asked; None for a stream of
requests."""


async def _refused(channel: grpc.aio.Channel, call: Call, what: str, findings: Findings) -> None:
    try:
        async with asyncio.timeout(2), channel:
            answering = call(channel)
            if hasattr(answering, "__aiter__"):
                async for _ in answering:
                    break
            else:
                await answering
    except grpc.aio.AioRpcError as error:
        findings.count(error.code().name)
        if error.code() in _REFUSED:
            return
        findings.broken.append(f"{what}: {error.code().name}")
    except TimeoutError:
        findings.broken.append(f"{what} was let in, and waits")
    else:
        findings.broken.append(f"{what} was answered")


async def _send_at(host: str, port: int, data: bytes, findings: Findings) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(data)
                await writer.drain()
                await reader.read(100)
                findings.count("sent")
            finally:
                writer.close()
