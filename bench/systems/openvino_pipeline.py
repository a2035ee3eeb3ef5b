"""The peer of `bench.peers.openvino_pipeline`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from bench.harness.processes import child, read_json, write_json
from bench.systems.base import WHOLE_TOKENS, Setup, System, Work, WorkResult, from_json, to_json
from outrider.children import PipedProcess
from outrider.models.vocabulary import Vocabulary


class Pipeline:
    """A process that takes one job after the other."""

    def __init__(
        self,
        process: PipedProcess,
        vocabulary: Vocabulary,
        settings: Mapping[str, object],
    ) -> None:
        self.settings = settings
        self._process = process
        self._stop_ids = sorted(vocabulary.stop_ids)

    async def run(self, work: Work) -> WorkResult:
        write_json(self._process, to_json(work, self._stop_ids))
        return from_json(await read_json(self._process))


@contextlib.asynccontextmanager
async def pipeline(
    model: Path, vocabulary: Vocabulary, setup: Setup, *, lookup_tokens: int = 0
) -> AsyncIterator[System]:
    """Start the pipeline on the IR in `model`; `lookup_tokens` above 0 lets it speculate."""
    flags = (
        *("--threads", str(setup.threads), "--lookup-tokens", str(lookup_tokens)),
        *("--chunk-tokens", str(setup.chunk_tokens)),
        *(("--whole-prompts",) if setup.chunk_tokens == WHOLE_TOKENS else ()),
    )
    module = "bench.peers.openvino_pipeline"
    async with child(sys.executable, "-m", module, str(model), *flags) as process:
        yield Pipeline(process, vocabulary, await read_json(process))
