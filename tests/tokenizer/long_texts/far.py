"""A tokenizer service and its clients on one host, its workers on another, as processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.children import ChildProcess, PipedProcess, start_piped
from outrider.testing import eventually, free_tcp_port
from outrider.tls import Role, TlsConfig
from services.tokenizer.long_texts.worker_pool import WORKERS
from tests.tls.issuing import Issuer
from tests.tokenizer.long_texts.hosts import Host, two_hosts

OUTRIDER = (sys.executable, "-m", "outrider.cli.main")
LOCKSTEP = (sys.executable, "-m", "tests.tokenizer.long_texts.lockstep")
PORT, WORKER_PORT = 7200, 7201
_READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


def tls_settings(config: TlsConfig) -> list[str]:
    keys = ("certificate", "private_key", "ca")
    return [part for key in keys for part in ("--set", f"tls.{key}={getattr(config, key)}")]


def settings(**values: object) -> list[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


class Far:
    """A service on one host, its workers on the other."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path) -> None:
        self.near, self.far = hosts
        self.issuer = Issuer(folder)
        self.folder = folder
        self.started: list[ChildProcess] = []
        self.port, self.worker_port = (
            (PORT, WORKER_PORT) if self.near.is_apart else (free_tcp_port(), free_tcp_port())
        )

    async def serve(self, **values: object) -> ChildProcess:
        """The service, once it is ready."""
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        asked = settings(
            host=self.near.address,
            port=self.port,
            worker_port=self.worker_port,
            log_level="error",
            **values,
        )
        certificate = tls_settings(self.issuer.config(Role.TOKENIZER))
        process = self.near.start(
            (*OUTRIDER, "serve", "tokenizer", "--ready-file", str(ready), *asked, *certificate)
        )
        self.started.append(process)
        await eventually(lambda: ready.exists() or process.returncode is not None, timeout_s=200.0)
        assert process.returncode is None
        return process

    def worker(self, name: str) -> ChildProcess:
        """One more worker."""
        certificate = tls_settings(self.issuer.config(Role.TOKENIZER_WORKER))
        service = f"{self.near.address}:{self.worker_port}"
        asked = settings(services=service, name=name, max_reconnect_s=0.2, log_level="error")
        process = self.far.start((*OUTRIDER, "serve", "tokenizer-worker", *asked, *certificate))
        self.started.append(process)
        return process

    async def joined(self, num_workers: int) -> None:
        """Return once the service has so many workers."""
        port = json.loads((self.folder / "ready.json").read_text())["admin"]
        command = [
            *self.near.enter,
            sys.executable,
            "-c",
            _READ,
            f"http://127.0.0.1:{port}/metrics",
        ]
        wanted = f"{WORKERS} {num_workers}.0"
        async with asyncio.timeout(120):
            while True:
                page = await asyncio.to_thread(
                    subprocess.run, command, capture_output=True, text=True, check=True
                )
                if wanted in page.stdout:
                    return

    async def tokenize(self, text: Path, ids: Path, vocabulary: Path) -> PipedProcess:
        """A client on the service's host, which reads one block after each line that it gets; it
        has the first. `vocabulary`: a folder of `Vocabulary.save`."""
        caller = self.issuer.config(Role.ROUTER)
        files = (text, ids, vocabulary, caller.certificate, caller.private_key, caller.ca)
        command = (*LOCKSTEP, f"{self.near.address}:{self.port}", *map(str, files))
        process = await start_piped((*self.near.enter, *command))
        self.started.append(process)
        assert await process.stdout.readline()
        return process

    async def end(self) -> None:
        for process in self.started:
            process.kill()
        await asyncio.gather(*(process.wait() for process in self.started))


@asynccontextmanager
async def far_workers(folder: Path) -> AsyncIterator[Far]:
    with two_hosts() as hosts:
        mesh = Far(hosts, folder)
        try:
            yield mesh
        finally:
            await mesh.end()
