"""What long texts need, put together: the crew, this node's workers, the rules of cutting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from outrider.telemetry.metrics import Metrics
from outrider.tokenization.cut_proofs import UnprovenError, prove
from outrider.tokenization.cuts import CutRule
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.jobs import Limits
from services.tokenizer.parts.crew import Crew
from services.tokenizer.parts.processes import Processes
from services.tokenizer.parts.texts import LongTexts
from services.tokenizer.vocabularies import Vocabularies

_log = structlog.get_logger()


@asynccontextmanager
async def long_texts(
    config: TokenizerConfig, vocabularies: Vocabularies, metrics: Metrics
) -> AsyncIterator[LongTexts]:
    """Ready for texts once `processes.address` is set; leaves no process behind."""
    rules = await asyncio.to_thread(_rules, vocabularies)
    processes = Processes(config.worker_processes, metrics)
    crew = Crew(_limits(config), metrics, processes.kill)
    watching = asyncio.create_task(crew.watch())
    try:
        yield LongTexts(
            vocabularies, rules, crew, processes, config.part_chars, config.max_part_chars
        )
    finally:
        watching.cancel()
        await processes.close()


def _limits(config: TokenizerConfig) -> Limits:
    return Limits(
        max_jobs=config.max_long_texts,
        window_parts=config.window_parts,
        silent_s=config.worker_silent_s,
        slow_s=config.part_slow_s,
    )


def _rules(vocabularies: Vocabularies) -> dict[bytes, CutRule]:
    rules = {}
    for served in vocabularies:
        try:
            rules[served.vocabulary.digest] = prove(served.vocabulary.tokenizer_json)
        except UnprovenError as error:
            _log.warning("texts_not_cut", model=served.model, reason=str(error))
    return rules
