"""`outrider tokenize --service`: the same output, whoever encodes the long texts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import free_tcp_port
from outrider.tls import Role
from tests.bulk.making import contents
from tests.models import corpus
from tests.test_tokenizer_client import service_with_a_worker
from tests.tls.issuing import Issuer

pytestmark = [pytest.mark.model, pytest.mark.e2e]
COMMAND = [sys.executable, "-m", "outrider.cli.main", "tokenize"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    long = " ".join(corpus.ORDINARY * 40)
    assert len(long) > 1 << 16
    (tmp_path / "long.txt").write_bytes(long.encode())
    short = [{"text": text} for text in (*corpus.LANGUAGES, long + " and again")]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(it) + "\n" for it in short))
    return [str(tmp_path / "long.txt"), str(tmp_path / "texts.jsonl")]


async def tokenized(files: list[str], out: Path, *options: str) -> dict[str, Any]:
    command = [*COMMAND, *files, "--out", str(out), "--workers", "1", "--json", *options]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_long_texts_go_to_the_service_and_the_output_is_the_same(
    vocabulary: Vocabulary, files: list[str], tmp_path: Path
) -> None:
    here, there, away = (tmp_path / name for name in ("here", "there", "away"))
    issuer = Issuer(tmp_path)
    operator = issuer.config(Role.OPERATOR)
    certificate = ["--certificate", str(operator.certificate)]
    certificate += ["--private-key", str(operator.private_key), "--ca", str(operator.ca)]
    assert (await tokenized(files, here))["by_service"] == 0
    settings = {
        "tls": issuer.config(Role.TOKENIZER),
        "worker_tls": issuer.config(Role.TOKENIZER_WORKER),
        "caller": issuer.tls(Role.ROUTER),
    }
    async with service_with_a_worker(vocabulary, **settings) as service:
        told = await tokenized(files, there, "--service", service.address, *certificate)
        assert told["by_service"] == 2
    nobody = f"127.0.0.1:{free_tcp_port()}"
    assert (await tokenized(files, away, "--service", nobody))["by_service"] == 0
    assert contents(there) == contents(away) == contents(here)
