"""Peers whose process takes one job after the other, a line of JSON each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from bench.harness.load import System, Work, WorkResult, from_json, to_json
from bench.harness.processes import child, read_json, write_json
from outrider.children import PipedProcess
from outrider.models.vocabulary import Vocabulary


class Worker:
    """Such a process."""

    def __init__(
        self, process: PipedProcess, vocabulary: Vocabulary, settings: Mapping[str, object]
    ) -> None:
        self.settings = settings
        self._process = process
        self._stop_ids = sorted(vocabulary.stop_ids)

    async def run(self, work: Work) -> WorkResult:
        """Raises RuntimeError if the process ends."""
        write_json(self._process, to_json(work, self._stop_ids))
        return from_json(await read_json(self._process))


@contextlib.asynccontextmanager
async def worker(vocabulary: Vocabulary, *command: str) -> AsyncIterator[System]:
    """Start it; its first line says how it is set up."""
    async with child(*command) as process:
        yield Worker(process, vocabulary, await read_json(process))
