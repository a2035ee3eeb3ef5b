"""Serves a model store's models to the rest of the mesh, as a mirror: HTTP/1.1, read-only.

    GET /SHA256/manifest.json      GET /SHA256/000000       (and HEAD; ranges of shards)

Over mutual TLS, to the roles that load models; without certificates only to this machine. A
deliberately small server, as the admin port's is: no bodies, a bounded head, one request per
connection, bounded connections and times. Receivers verify what it sends; damage on this disk is
noticed once, when the manifest is made, and such a model is not offered.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography import x509

from outrider.bounds import NonNegativeFloat, PositiveInt, check_bounds
from outrider.errors import (
    ConfigError,
    ModelStoreError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.mirrors.manifest import DEFAULT_SHARD_BYTES, Manifest
from outrider.mirrors.pace import BandwidthCap
from outrider.mirrors.push import make_manifest
from outrider.models.store import ModelStore
from outrider.shared_calls import SharedCalls
from outrider.tls import Tls
from outrider.tls.access import MODELS
from outrider.tls.certificates import subject_alternative_names
from outrider.tls.identity import identify

MAX_HEAD_BYTES: Final = 8192
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 30.0
"""For the request, and for each piece that the peer takes."""
_BACKLOG: Final = 128
_ACCEPT_PAUSE_S: Final = 1.0
"""After a connection could not be taken."""
_PIECE_BYTES: Final = 256 << 10
_TOLD_EVERY_S: Final = 5.0
_PATH: Final = re.compile(r"/([0-9a-f]{64})/(manifest\.json|[0-9]{6})")
_RANGE: Final = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})?")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How models are served."""

    host: str = "127.0.0.1"
    port: int = 7400
    """0: any free one."""
    max_connections: PositiveInt = 64
    """Most connections, including those in their handshake. Further ones are closed at once; the
    clients ask again, or elsewhere."""
    max_mb_s: NonNegativeFloat = 0.0
    """Most megabytes a second, to all clients together; 0: no cap."""
    shard_bytes: int = DEFAULT_SHARD_BYTES

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response: a small text, or a part of a file."""

    status: HTTPStatus
    body: bytes = b""
    path: Path | None = None
    begin: int = 0
    """Offset of the part in the file."""
    num_bytes: int = 0
    """Length of the part."""
    headers: tuple[str, ...] = ()


class ModelServer:
    """Serves one store while it is open. It belongs to the event loop in which it was started."""

    def __init__(self, store: ModelStore, config: ServerConfig, tls: Tls) -> None:
        self._store, self._config, self._tls = store, config, tls
        self._manifests: SharedCalls[str, tuple[Manifest, Path]] = SharedCalls(math.inf)
        """Manifests of models in the store."""
        self._pace = BandwidthCap(config.max_mb_s * 1e6, 0.0)
        self._connections = set[asyncio.Task[None]]()
        self._socket: socket.socket | None = None
        self._context: ssl.SSLContext | None = None
        """With the certificates of now."""
        self._generation = 0
        self._told_at = -_TOLD_EVERY_S
        self.sent_bytes = 0
        """Bytes of shards sent since the start."""

    async def start(self) -> int:
        """Look at the store's models, listen, and return the port. Raises ConfigError for a host
        that takes certificates, and for an address that is taken."""
        config = self._config
        if self._tls.current is None:
            self._tls.config.check_reach(config.host, "serve models on")
        for sha256 in await asyncio.to_thread(self._held):
            with suppress(ModelStoreError, OSError):  # logged; it is not offered
                await self._manifest(sha256)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, address = found[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.setblocking(False)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot serve models on {config.host}:{config.port}: {error.strerror}"
            ) from error
        self._generation, self._context = self._tls.generation, self._made_context()
        return int(self._socket.getsockname()[1])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accept connections and follow the certificates while the context is open, then end
        running connections."""
        assert self._socket is not None, "start comes first"
        running = [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._accept(self._socket)),
        ]
        try:
            async with self._tls.watched():
                yield
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._socket.close()
            tasks: list[asyncio.Future[Any]]
            tasks = [*self._connections, *self._manifests.running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self._tls.generation != self._generation:
                self._generation = self._tls.generation
                try:
                    self._context = self._made_context()
                except (OSError, ssl.SSLError) as error:  # between two writes of one rotation
                    _log.warning("certificate_not_loaded", why=str(error))

    async def _accept(self, listening: socket.socket) -> None:
        """A connection counts from here on: a peer that connects and never shakes hands, too."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # one a turn, however many wait
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # such as too many open files
                if self._may_tell():
                    _log.warning("connections_not_accepted", why=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= self._config.max_connections:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    def _made_context(self) -> ssl.SSLContext | None:
        if self._tls.current is None:
            return None
        config = self._tls.config
        assert config.certificate and config.private_key and config.ca, "Tls has all or none"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(config.certificate, config.private_key)
        return context

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_HEAD_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S if self._context else None,
            )
        except OSError:
            return  # a peer that stalls or leaves, or whose handshake failed
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._exchange(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        except OSError:
            pass  # a peer that stalls or leaves
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return
        method, answer = "GET", _said(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
        try:
            self._check_caller(writer)
            method, target, headers = _parsed(head)
            answer = await self._answer(method, target, headers.get("range", ""))
        except (PermissionDeniedError, UnauthenticatedError) as error:
            answer = _said(HTTPStatus.FORBIDDEN, error.message)
            if self._may_tell():
                _log.warning("models_refused", why=error.message)
        except ValueError:
            pass
        except (ModelStoreError, OSError) as error:
            answer = _said(HTTPStatus.SERVICE_UNAVAILABLE, "this model is damaged here")
            if self._may_tell():
                _log.warning("model_not_served", why=str(error))
        await self._send(writer, answer, is_head=method == "HEAD")

    def _check_caller(self, writer: asyncio.StreamWriter) -> None:
        """Raises PermissionDeniedError, UnauthenticatedError. The handshake has verified the chain;
        without certificates only this machine can connect."""
        if self._tls.current is None:
            return
        session: ssl.SSLObject = writer.get_extra_info("ssl_object")
        der = session.getpeercert(binary_form=True)
        assert der, "the handshake asks for one"
        names = subject_alternative_names(x509.load_der_x509_certificate(der))
        caller = identify(*names, self._tls.config.trust_domain)
        if caller.role not in MODELS:
            raise PermissionDeniedError(f"models are not served to the role {caller.role}")

    async def _answer(self, method: str, target: str, asked: str) -> _Answer:
        if method not in ("GET", "HEAD"):
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        match = _PATH.fullmatch(target)
        if match is None or not await asyncio.to_thread(self._holds, match[1]):
            if match is not None:
                self._manifests.forget(match[1])  # of one that was removed
            return _said(HTTPStatus.NOT_FOUND, "there is no such model here")
        manifest, path = await self._manifest(match[1])
        if match[2] == "manifest.json":
            return _Answer(HTTPStatus.OK, manifest.to_json().encode())
        if (shard := int(match[2])) >= len(manifest.shards):
            return _said(HTTPStatus.NOT_FOUND, "the model has no such shard")
        return _part(path, *manifest.extent(shard), asked)

    def _held(self) -> list[str]:
        return [artifact.sha256 for artifact in self._store.list()]

    def _holds(self, sha256: str) -> bool:
        """Now: what was removed is not served, what was pulled meanwhile is."""
        return self._store.blob(sha256) is not None

    async def _manifest(self, sha256: str) -> tuple[Manifest, Path]:
        """The manifest of a model, made once by reading all of it; concurrent callers wait for the
        same one. Raises ModelStoreError, OSError."""
        try:
            made = partial(asyncio.to_thread, self._read, sha256)
            return await self._manifests.result(sha256, made)
        except (ModelStoreError, OSError) as error:
            _log.warning("model_not_served", sha256=sha256, why=str(error))
            raise

    def _read(self, sha256: str) -> tuple[Manifest, Path]:
        path = self._store.blob(sha256)
        if path is None:
            raise ModelStoreError(f"{sha256} is not in the store any more")
        manifest = make_manifest(path, self._config.shard_bytes)
        if manifest.sha256 != sha256:
            raise ModelStoreError(f"{path} is corrupt; pull the model again")
        _log.info("model_offered", sha256=sha256, num_bytes=manifest.num_bytes)
        return manifest, path

    async def _send(self, writer: asyncio.StreamWriter, answer: _Answer, *, is_head: bool) -> None:
        num_bytes = answer.num_bytes if answer.path is not None else len(answer.body)
        lines = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            *("Connection: close", "Accept-Ranges: bytes", f"Content-Length: {num_bytes}"),
            *answer.headers,
        )
        writer.write("\r\n".join((*lines, "", "")).encode("ascii"))
        if not is_head:
            writer.write(answer.body)
            if answer.path is not None:
                await self._send_part(writer, answer.path, answer.begin, num_bytes)
        await _drained(writer)

    async def _send_part(
        self, writer: asyncio.StreamWriter, path: Path, begin: int, num_bytes: int
    ) -> None:
        loop = asyncio.get_running_loop()
        descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY)
        try:
            while num_bytes:
                size = min(num_bytes, _PIECE_BYTES)
                piece = await asyncio.to_thread(os.pread, descriptor, size, begin)
                if not piece:
                    raise OSError(f"{path} has become shorter")
                writer.write(piece)
                await _drained(writer)
                begin, num_bytes = begin + len(piece), num_bytes - len(piece)
                self.sent_bytes += len(piece)
                if pause_s := self._pace.take(len(piece), loop.time()):
                    await asyncio.sleep(pause_s)
        finally:
            os.close(descriptor)

    def _may_tell(self) -> bool:
        """A line every few seconds at most, however often somebody asks."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at < _TOLD_EVERY_S:
            return False
        self._told_at = now
        return True


async def _drained(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(IDLE_S):
        await writer.drain()


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target, and headers by name in lower case. Raises ValueError."""
    first, *rest = head.decode("ascii").split("\r\n")
    method, target, version = first.split(" ")
    if version != "HTTP/1.1":
        raise ValueError(version)
    pairs = (line.partition(":") for line in rest if line)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _part(path: Path, begin: int, num_bytes: int, asked: str) -> _Answer:
    """A shard, or the range of it that was asked for (RFC 9110, section 14.2); a range of another
    form is ignored, as that section allows."""
    match = _RANGE.fullmatch(asked)
    if match is None:
        return _Answer(HTTPStatus.OK, path=path, begin=begin, num_bytes=num_bytes)
    first = int(match[1])
    last = min(int(match[2]), num_bytes - 1) if match[2] else num_bytes - 1
    if first > last:
        what = f"Content-Range: bytes */{num_bytes}"
        return _Answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=(what,))
    return _Answer(
        HTTPStatus.PARTIAL_CONTENT,
        path=path,
        begin=begin + first,
        num_bytes=last - first + 1,
        headers=(f"Content-Range: bytes {first}-{last}/{num_bytes}",),
    )


def _said(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, f"{text}\n".encode(), headers=("Content-Type: text/plain",))
