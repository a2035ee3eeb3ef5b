"""Chats on the service's own scheduler and an engine in this process, without any wire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.engines.base import Engine
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.grammar import Grammar
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.speculation.shipped import shipped_prior
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, Failed, Finished, OpenRequest, SessionCommit


@dataclass(slots=True)
class Outcome:
    """The replies to some requests, in their order."""

    seconds: float = 0.0
    replies: list[list[int]] = field(default_factory=list)
    num_commits: int = 0
    num_lossy: int = 0
    """Tokens that were let through, though another one was the model's choice."""
    accepted: int = 0
    """Tokens of predictions that were right, of those that were tried."""
    rejected: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.replies))

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


def answer(
    engine: Engine,
    vocabulary: Vocabulary,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    *,
    concurrency: int,
    first_seed: int = 0,
    predictions: Sequence[str] = (),
    grammars: Sequence[Grammar | None] = (),
    drafts: bool = True,
) -> Outcome:
    """Answer all prompts, `concurrency` at a time, on a scheduler of their own, which knows no
    others; seeds count from the first. `grammars`, if any, is one for each prompt, or None: a reply
    in free text. `drafts`: the region drafts for itself. Raises the error of a session that fails,
    or of a grammar that cannot be compiled."""

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    prior = shipped_prior(vocabulary.tokens_digest)
    limits = SchedulerLimits(max_sessions=concurrency)
    scheduler = Scheduler(engine.info, limits, new_reply, prior)
    texts = predictions or [""] * len(prompts)
    laws = grammars or [None] * len(prompts)
    table = TokenTable(vocabulary) if any(laws) else None
    asked = [
        OpenRequest(
            number,
            tuple(ids),
            replace(sampling, seed=first_seed + number, grammar=law),
            prediction=tuple(vocabulary.encode(text)),
            region_drafts=drafts,
            constraint=compile_grammar(table, law).constraint() if table and law else None,
        )
        for number, (ids, text, law) in enumerate(zip(prompts, texts, laws, strict=True))
    ]
    asked.reverse()
    outcome = Outcome(replies=[[] for _ in prompts])
    begin = time.perf_counter()
    while asked or scheduler.has_work:
        # None waits: a queue is a sign of overload, which ends drafting.
        while asked and scheduler.load().running_sessions < concurrency:
            scheduler.open(asked.pop(), time.perf_counter())
            _step(scheduler, engine, outcome)
        _step(scheduler, engine, outcome)
    outcome.seconds = time.perf_counter() - begin
    return outcome


def _step(scheduler: Scheduler, engine: Engine, outcome: Outcome) -> None:
    batch = scheduler.schedule(time.perf_counter())
    if batch is not None:
        rows = batch.run(engine, scheduler.overlapped_work)
        for event in scheduler.postprocess(batch, rows, time.perf_counter()):
            _enter(outcome, event)


def _enter(outcome: Outcome, event: Event) -> None:
    """No edge drafts, so a commit holds all its ids."""
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, SessionCommit):
        outcome.replies[event.session_id].extend(event.commit.ids)
        outcome.num_lossy += event.commit.num_lossy
        outcome.num_commits += 1
    if isinstance(event, Finished):
        outcome.accepted += event.usage.accepted_prediction_tokens
        outcome.rejected += event.usage.rejected_prediction_tokens
