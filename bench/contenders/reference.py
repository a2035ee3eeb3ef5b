"""What the replies have to be: the same prompts, one token at a time, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contenders.replica import sampling
from bench.contenders.work import Request, Work
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.reference import generate


def reference(
    vocabulary: Vocabulary, work: Work, requests: Sequence[Request], threads: int
) -> list[tuple[int, ...]]:
    """The ids of each reply; blocks."""
    engine = create_engine(EngineConfig(threads=threads, max_fixed_rows=1))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    try:
        return [
            generate(engine, request.prompt, sampling(work, request), new_reply).ids
            for request in requests
        ]
    finally:
        engine.close()
