"""The peer of `bench.peers.ik_llamacpp`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from bench.harness.processes import child, read_json
from bench.peers import ik_llamacpp
from bench.systems.base import Setup, System
from bench.systems.openvino_pipeline import Pipeline
from outrider.models.vocabulary import Vocabulary


@contextlib.asynccontextmanager
async def ik_llama(model: Path, vocabulary: Vocabulary, setup: Setup) -> AsyncIterator[System]:
    """Start it on this GGUF. It takes one job after the other, as the pipeline's process does."""
    flags = ("--model", str(model), "--threads", str(setup.threads))
    async with child(str(ik_llamacpp.PYTHON), ik_llamacpp.__file__, *flags) as process:
        yield Pipeline(process, vocabulary, await read_json(process))
