"""`outrider serve tokenizer-worker`: workers on another host than their service, killed in the
middle of a text, told to stop."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import free_tcp_port
from outrider.tls import Role
from services.tokenizer.long_texts.worker_pool import WORKERS
from services.tokenizer_worker.app import PARTS, SERVICES, TOKENS
from services.tokenizer_worker.app import serve as serve_worker
from services.tokenizer_worker.config import TokenizerWorkerConfig
from tests.models import corpus
from tests.service import running_service
from tests.tls.issuing import Issuer
from tests.tokenizer.long_texts.far import OUTRIDER, far_workers, settings
from tests.tokenizer.long_texts.test_texts import once_not_refused, to_count
from tests.tokenizer.running import running_tokenizer


def long_text(num_pieces: int) -> str:
    rng = random.Random(7)
    return "".join(rng.choice(corpus.ORDINARY) + rng.choice(" \n\t") for _ in range(num_pieces))


@pytest.mark.e2e
@pytest.mark.model
async def test_workers_of_another_host_are_killed_in_mid_text_and_the_ids_stay_the_same(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Service and client on one host, all workers on another, each killed by SIGKILL after some
    blocks, and another one started."""
    text, ids = tmp_path / "text", tmp_path / "ids"
    whole = long_text(4_000)
    text.write_bytes(whole.encode())
    vocabulary.save(tmp_path)
    async with far_workers(tmp_path) as mesh:
        await mesh.serve(worker_processes=0, part_chars=4_000, window_parts=4)
        workers = [mesh.worker("first"), mesh.worker("second")]
        await mesh.joined(2)
        client = await mesh.tokenize(text, ids, tmp_path)
        num_blocks, line = 1, b"1"
        while b"." not in line:  # the last one is in seconds
            num_blocks = int(line)
            if num_blocks % 10 == 0 and num_blocks <= 30:
                os.kill(workers.pop(0).pid, signal.SIGKILL)
                workers.append(mesh.worker(f"after-{num_blocks}"))
            client.stdin.write(b"\n")
            line = await client.stdout.readline()
        assert await client.finish() == 0
        assert num_blocks > 30
        assert list(array("I", ids.read_bytes())) == vocabulary.encode(whole)


@pytest.mark.model
async def test_a_worker_joins_with_its_certificate_and_leaves_in_order(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    issuer, port = Issuer(tmp_path), free_tcp_port()
    service_settings: dict[str, Any] = {
        "worker_processes": 0,
        "worker_port": port,
        "tls": issuer.config(Role.TOKENIZER),
        "caller": issuer.tls(Role.ROUTER),
    }
    config = TokenizerWorkerConfig(
        services=(f"127.0.0.1:{port}",),
        tls=issuer.config(Role.TOKENIZER_WORKER),
        log_level="critical",
        max_reconnect_s=0.2,
    )
    async with running_service(serve_worker, config) as ports:
        assert '"ready": false' in await page(ports.admin, "/ready")
        async with running_tokenizer(vocabulary, **service_settings) as service:
            await once_not_refused(service, "UNAVAILABLE")
            assert '"ready": true' in await page(ports.admin, "/ready")
            assert (await service.stub.Count(to_count("one two three"))).count == 3
            told = await page(ports.admin, "/metrics")
            assert f"{SERVICES} 1.0" in told
            assert f"{PARTS}_total" in told and f"{TOKENS}_total" in told
        await eventually_ready(ports.admin, ready=False)
        async with running_tokenizer(vocabulary, **service_settings) as service:
            await once_not_refused(service, "UNAVAILABLE")  # it came back by itself


@pytest.mark.model
async def test_a_worker_cannot_take_the_place_of_one_with_another_certificate(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Whatever it calls itself."""
    issuer, port = Issuer(tmp_path), free_tcp_port()
    first, second = [
        TokenizerWorkerConfig(
            services=(f"127.0.0.1:{port}",),
            name="same",
            tls=issuer.config(Role.TOKENIZER_WORKER, "here", number),
            log_level="critical",
        )
        for number in ("1", "2")
    ]
    service_settings: dict[str, Any] = {
        "worker_processes": 0,
        "worker_port": port,
        "tls": issuer.config(Role.TOKENIZER),
        "caller": issuer.tls(Role.ROUTER),
    }
    async with (
        running_tokenizer(vocabulary, **service_settings) as service,
        running_service(serve_worker, first),
        running_service(serve_worker, second),
    ):
        async with asyncio.timeout(60):
            while f"{WORKERS} 2.0" not in await service.admin("/metrics"):
                await asyncio.sleep(0.02)


async def page(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def eventually_ready(port: int, *, ready: bool) -> None:
    async with asyncio.timeout(60):
        while f'"ready": {str(ready).lower()}' not in await page(port, "/ready"):
            await asyncio.sleep(0.02)


@pytest.mark.e2e
def test_a_worker_whose_service_is_away_ends_when_it_is_told_to() -> None:
    command = [*OUTRIDER, "serve", "tokenizer-worker", *settings(services="127.0.0.1:9")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        try:
            while b"service_lost" not in worker.stderr.readline():
                assert worker.poll() is None
            worker.terminate()
            assert worker.wait(200) == 0
        finally:
            worker.kill()


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"services": ()}, "services is empty"),
        ({"services": ("nowhere",)}, "each of services"),
        ({"threads": 64}, "threads"),
        ({"name": "x" * 201}, "name has more"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        TokenizerWorkerConfig(**values)
