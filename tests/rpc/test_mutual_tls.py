"""Mutual TLS over real gRPC: who is refused, and what rotation does to streams that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import (
    ConfigError,
    DeadlineError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from outrider.rpc import (
    add_health,
    bind,
    from_rpc_error,
    make_channel,
    make_server,
    until_distrusted,
)
from outrider.testing import eventually, leak_check
from outrider.tls import PeerIdentity, Role, Tls, TlsConfig
from outrider.tls.certificates import utc_now
from outrider.tls.development import DevelopmentCa, write
from outrider.v1 import inference_pb2, inference_pb2_grpc
from tests.rpc.echo import Echo

POLL_S = 0.02
REPLICA = PeerIdentity(Role.INFERENCE, "us", "a")
_HEALTH = health_pb2.HealthCheckRequest()
_REQUEST = inference_pb2.GetModelRequest()
REFUSED = (UnavailableError, DeadlineError)
"""What a client sees of a handshake that fails."""
ROUTER = PeerIdentity(Role.ROUTER, "us")
_Call = grpc.aio.StreamStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


class Bed:
    """A server and clients, whose files a test rotates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = DevelopmentCa(utc_now())
        self._stack = AsyncExitStack()
        self.address = ""
        self.server_tls = self.open("server", REPLICA)

    def open(
        self,
        name: str,
        identity: PeerIdentity,
        *,
        signer: DevelopmentCa | None = None,
        validity: timedelta | None = None,
        trusted: bytes = b"",
    ) -> Tls:
        """The files of one process, as they would be issued now."""
        issued = (signer or self.ca).issue(identity, utc_now(), validity)
        return Tls.open(write(self.folder / name, name, issued, trusted or self.ca.pem))

    async def start(self) -> None:
        server = make_server(self.server_tls)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(Echo(), server)
        add_health(server).set_serving(True)
        self.address = f"127.0.0.1:{bind(server, '127.0.0.1', 0, self.server_tls)}"
        await server.start()
        self._stack.push_async_callback(server.stop, None)
        await self.watch(self.server_tls)

    async def watch(self, tls: Tls) -> None:
        await self._stack.enter_async_context(tls.watched(POLL_S))

    async def close(self) -> None:
        await self._stack.aclose()

    def channel(self, tls: Tls, region: str = "") -> grpc.aio.Channel:
        return make_channel(self.address, tls=tls, role=Role.INFERENCE, region=region)

    async def refused(self, tls: Tls, region: str = "") -> None:
        """One call fails: gRPC tries again and again to reach a server that closes the connection
        after its own part of the handshake."""
        with pytest.raises(REFUSED):
            await self.model(tls, region, limit_s=1.0)

    async def model(self, tls: Tls, region: str = "", limit_s: float = 60.0) -> str:
        """One call on a connection of its own. Raises what became of it."""
        async with self.channel(tls, region) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                return (await stub.GetModel(_REQUEST, timeout=limit_s)).model
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error

    @asynccontextmanager
    async def streams(self, tls: Tls, count: int) -> AsyncIterator[list[_Call]]:
        """So many streams of one client, half of them on each of two connections."""
        async with self.channel(tls) as one, self.channel(tls) as two:
            calls = [inference_pb2_grpc.InferenceServiceStub(c).Generate() for c in (one, two)]
            calls += [
                inference_pb2_grpc.InferenceServiceStub((one, two)[n % 2]).Generate()
                for n in range(count - 2)
            ]
            await asyncio.gather(*map(echoed, calls))
            yield calls
            for call in calls:
                call.cancel()


def _is_past(tls: Tls, generation: int) -> bool:
    return tls.generation > generation


async def echoed(call: _Call) -> None:
    """Raises the call's error unless it lives."""
    await call.write(inference_pb2.GenerateRequest(frames=[inference_pb2.SessionUp(session=7)]))
    answer = await call.read()
    assert isinstance(answer, inference_pb2.GenerateResponse)
    assert answer.frames[0].session == 7


async def ended(call: _Call) -> None:
    """The call is ended by the server as unauthenticated."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert isinstance(from_rpc_error(caught.value), UnauthenticatedError), caught.value


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    async with leak_check():
        it = Bed(tmp_path)
        await it.start()
        yield it
        await it.close()


async def test_a_wrong_role_is_refused(bed: Bed) -> None:
    with pytest.raises(PermissionDeniedError, match="edge"):
        await bed.model(bed.open("edge", PeerIdentity(Role.EDGE)))


async def test_another_ca_is_refused(bed: Bed) -> None:
    stranger = bed.open("stranger", ROUTER, signer=DevelopmentCa(utc_now()))
    await bed.refused(stranger)


async def test_an_expired_certificate_is_refused(bed: Bed) -> None:
    await bed.refused(bed.open("late", ROUTER, validity=timedelta(seconds=-1)))


async def test_no_certificate_is_refused(bed: Bed) -> None:
    name = (("grpc.ssl_target_name_override", "inference.outrider.internal"),)
    channels = {
        "plaintext": grpc.aio.insecure_channel(bed.address),
        "TLS": grpc.aio.secure_channel(
            bed.address, grpc.ssl_channel_credentials(bed.ca.pem), options=name
        ),
    }
    for channel in channels.values():
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(_HEALTH, timeout=1.0)
            assert isinstance(from_rpc_error(caught.value), REFUSED)


async def test_a_server_of_another_role_ca_or_region_is_not_called(bed: Bed) -> None:
    router = bed.open("router", ROUTER)
    assert await bed.model(router, "us") == "m"
    await bed.refused(router, "eu")
    await bed.refused(bed.open("other", ROUTER, trusted=DevelopmentCa(utc_now()).pem))
    async with make_channel(bed.address, tls=router, role=Role.TOKENIZER) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Check(_HEALTH, timeout=1.0)


async def test_certificates_and_cas_rotate_while_a_hundred_streams_run(bed: Bed) -> None:
    old, new = bed.ca, DevelopmentCa(utc_now())
    both = old.pem + new.pem
    router, late = bed.open("router", ROUTER), bed.open("late", ROUTER)
    await bed.watch(router)
    async with bed.streams(router, 96) as calls, bed.streams(late, 4) as revoked:
        watching = asyncio.create_task(
            until_distrusted(bed.address, tls=router, role=Role.INFERENCE)
        )
        # Both CAs count; then the certificates change, one side after the other.
        for name, identity, signer in (
            ("server", REPLICA, old),
            ("router", ROUTER, old),
            ("server", REPLICA, new),
            ("router", ROUTER, new),
        ):
            tls = {"server": bed.server_tls, "router": router}[name]
            before = tls.generation
            bed.open(name, identity, signer=signer, trusted=both)
            await eventually(partial(_is_past, tls, before))
            assert await bed.model(router) == "m"
            await asyncio.gather(*map(echoed, (*calls, *revoked)))
        # The streams have the client's certificate of the old CA: another connection has the new.
        async with bed.streams(router, 50) as renewed:
            # The old CA is revoked: who never changed is cut off, and does not come back.
            bed.open("server", REPLICA, signer=new, trusted=new.pem)
            await asyncio.gather(*map(ended, (*calls, *revoked)))
            await asyncio.gather(*map(echoed, renewed))
            await bed.refused(late)
            assert await bed.model(router) == "m"
            # The server proves itself by the new CA, so nobody leaves it.
            bed.open("router", ROUTER, signer=new, trusted=new.pem)
            await eventually(lambda: router.ca_generation == 2)
            await asyncio.gather(*map(echoed, renewed))
            assert not watching.done()
            # Now it cannot any more.
            bed.open("router", ROUTER, signer=new, trusted=DevelopmentCa(utc_now()).pem)
            with pytest.raises(UnavailableError, match="no certificate"):
                await watching


async def test_a_revoked_connection_is_not_answered_either(bed: Bed) -> None:
    """The connection itself stays up: gRPC closes none for us."""
    router = bed.open("router", ROUTER)
    async with bed.channel(router) as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await stub.GetModel(_REQUEST)
        new = DevelopmentCa(utc_now())
        bed.open("server", REPLICA, signer=new, trusted=new.pem)
        await eventually(lambda: bed.server_tls.ca_generation == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModel(_REQUEST)
        assert isinstance(from_rpc_error(caught.value), UnauthenticatedError)


async def test_streams_end_when_their_certificate_does(bed: Bed) -> None:
    short = bed.open("short", ROUTER, validity=timedelta(seconds=2))
    long = bed.open("long", ROUTER)
    async with bed.streams(short, 4) as ending, bed.streams(long, 4) as staying:
        await asyncio.gather(*map(ended, ending))
        await asyncio.gather(*map(echoed, staying))


async def test_damaged_files_change_nothing(bed: Bed) -> None:
    config = bed.server_tls.config
    assert config.certificate
    assert config.private_key
    before = bed.server_tls.current
    config.certificate.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(ConfigError):
        Tls.open(config)
    await asyncio.sleep(2 * POLL_S)
    assert bed.server_tls.current is before
    assert await bed.model(bed.open("router", ROUTER)) == "m"


def test_what_cannot_work_is_said_at_the_start(bed: Bed, tmp_path: Path) -> None:
    config = bed.server_tls.config
    with pytest.raises(ConfigError, match="is for inference/us/a; this is router"):
        Tls.open(config, Role.ROUTER)
    with pytest.raises(ConfigError, match="this is inference/eu"):
        Tls.open(config, Role.INFERENCE, "eu")
    bed.open("other", ROUTER)
    with pytest.raises(ConfigError, match="not the key of"):
        Tls.open(replace(config, private_key=tmp_path / "other" / "other-key.pem"))
    with pytest.raises(ConfigError, match="another trust domain than elsewhere"):
        Tls.open(replace(config, trust_domain="elsewhere"))
    with pytest.raises(ConfigError, match="cannot read"):
        Tls.open(replace(config, ca=tmp_path / "none"))


async def test_without_certificates_only_this_machine_is_reached() -> None:
    server = make_server()
    for host in ("0.0.0.0", "[::]", "10.0.0.1", "router"):
        with pytest.raises(ConfigError, match="allow_plaintext"):
            bind(server, host, 0)
        with pytest.raises(ConfigError, match="allow_plaintext"):
            make_channel(f"{host}:7100")
    told = Tls(TlsConfig(allow_plaintext=True))
    assert bind(make_server(told), "0.0.0.0", 0, told) > 0
    async with make_channel("router:7100", tls=told):
        pass
