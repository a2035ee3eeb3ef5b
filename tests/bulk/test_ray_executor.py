"""The same output on Ray, where it is installed: `pip install 'outrider[ray]'`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from outrider.bulk.plan.shards import BulkSettings
from outrider.bulk.ray_executor import RayExecutor
from outrider.bulk.worker import BulkJob, BulkWorker
from outrider.errors import ConfigError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from tests.bulk.making import contents, tokenize
from tests.embedding_endpoint import running_endpoint
from tests.models import corpus

HAS_RAY = importlib.util.find_spec("ray") is not None
pytestmark = pytest.mark.model


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_is_told_what_to_install(vocabulary: Vocabulary, tmp_path: Path) -> None:
    job = BulkJob(str(tmp_path), BulkSettings(), vocabulary, REFERENCE, None)
    with pytest.raises(ConfigError, match=r"outrider\[ray\]"):
        RayExecutor(partial(BulkWorker, job), 1, None)


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install 'outrider[ray]'")
def test_the_output_is_the_local_pools(vocabulary: Vocabulary, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n".join(corpus.LANGUAGES * 8))
    small = BulkSettings(shard_bytes=2000)
    tokenize(vocabulary, [file], tmp_path / "local", small)
    # In a process of its own: Ray leaves threads and warnings behind.
    command = [sys.executable, "-m", "outrider.cli.main", "tokenize", str(file)]
    options = ["--out", str(tmp_path / "ray"), "--shard-mb", str(2000 / (1 << 20))]
    done = subprocess.run(
        [*command, *options, "--executor", "ray", "--workers", "2", "--backend", REFERENCE],
        capture_output=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_vectors_of_files_are_the_same(executor: str, tmp_path: Path) -> None:
    if executor == "ray" and not HAS_RAY:
        pytest.skip("Ray is not installed: pip install 'outrider[ray]'")
    file, out = tmp_path / "a.txt", tmp_path / "vectors.parquet"
    lines = [f"text {number} {'of many ' * 40}{number % 7}" for number in range(2000)]
    file.write_text("\n".join(lines))
    command = [sys.executable, "-m", "outrider.cli.main", "embed", str(file), "-o", str(out)]
    with running_endpoint() as endpoint:
        options = ["--url", endpoint.url, "--executor", executor, "--workers", "2"]
        done = subprocess.run([*command, *options], capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr.decode()
    table = pq.read_table(out)
    assert table["id"].to_pylist() == list(range(2000))
    assert table["vector"].to_pylist() == [[len(text), ord(text[-1])] for text in lines]
