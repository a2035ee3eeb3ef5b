"""The ground truth: one prompt, one token at a time, on only the engine interface.

No scheduler, no drafts, no batch, no reuse. Whatever the mesh does, its text equals this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.engines.base import Engine, Ids, LogitsRows, SequenceSlice
from outrider.errors import EmptyPromptError, InvalidRequestError, PromptTooLongError
from outrider.sampling.constraint import Constraint
from outrider.sampling.logprobs import token_logprobs
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.sampling.sampler import Sampler
from outrider.session.types import FinishReason, TokenLogprobs
from services.inference.scheduler.limits import context_limit

_SEQUENCE = 1


@dataclass(frozen=True, slots=True)
class ReferenceReply:
    """A whole reply."""

    text: str
    ids: tuple[int, ...]
    """The committed tokens, the ending one included."""
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each token, if the sampling values ask for them."""


def generate(
    engine: Engine,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    new_reply: Callable[[SamplingParams], ReplyText],
    *,
    constraint: Constraint | None = None,
    chunk_tokens: int = 512,
    on_text: Callable[[str], None] | None = None,
) -> ReferenceReply:
    """Run `prompt_ids` to its end; blocks. The engine must have no open sequence.

    `constraint` is that of the sampling's grammar. `on_text` gets the text of each token as it
    becomes final. Raises EmptyPromptError, PromptTooLongError, InvalidRequestError for ids outside
    the vocabulary, InvalidSamplingError if the constraint does, and EngineError.
    """
    limit = context_limit(engine.info)
    _check_prompt(prompt_ids, limit, engine.info.vocabulary_size)
    sampler = Sampler(sampling, engine.info.vocabulary_size, prompt_ids, constraint)
    sequence = _Sequence(engine, prompt_ids)
    try:
        sequence.prefill(chunk_tokens)
        return _reply(sequence, sampler, new_reply(sampling), limit, on_text)
    finally:
        engine.close_sequence(_SEQUENCE)


def _check_prompt(prompt_ids: Sequence[int], limit: int, vocabulary_size: int) -> None:
    if not prompt_ids:
        raise EmptyPromptError("the prompt has no tokens; send at least one")
    if len(prompt_ids) >= limit:
        raise PromptTooLongError.of(len(prompt_ids), limit - 1)
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary_size:
        raise InvalidRequestError(
            f"the prompt has ids outside the vocabulary of {vocabulary_size} ids"
        )


def _reply(
    sequence: _Sequence,
    sampler: Sampler,
    reply: ReplyText,
    limit: int,
    on_text: Callable[[str], None] | None,
) -> ReferenceReply:
    num_prompt = len(sequence.ids)
    pieces: list[str] = []
    logprobs: list[TokenLogprobs] = []
    num_logprobs = sampler.params.num_logprobs
    finished: FinishReason | None = None
    while finished is None:
        rows = sequence.next_rows()
        columns = None if rows.ids is None else rows.ids[0]
        chosen = sampler.choose(rows.logits[0], len(sequence.ids), columns)
        if num_logprobs >= 0:
            logprobs.append(token_logprobs(rows.logits[0], chosen, num_logprobs, columns))
        sampler.observe(chosen)
        sequence.ids.append(chosen)
        pieces.append(reply.push(chosen))
        finished = reply.finished
        if finished is None and len(sequence.ids) >= limit:
            finished = FinishReason.LENGTH
            pieces[-1] += reply.flush()
        if on_text is not None:
            on_text(pieces[-1])
    ids = tuple(sequence.ids[num_prompt:])
    return ReferenceReply("".join(pieces), ids, finished, tuple(logprobs))


class _Sequence:
    """One sequence in blocks 0, 1, 2, ... of an otherwise unused pool."""

    def __init__(self, engine: Engine, prompt_ids: Sequence[int]) -> None:
        self._engine = engine
        self._past = 0
        self.ids = list(prompt_ids)
        engine.open(_SEQUENCE, np.array(prompt_ids, np.int32))

    def prefill(self, chunk_tokens: int) -> None:
        """Compute all but the last chunk, whose last row gives the first token."""
        size = max(chunk_tokens, self._engine.info.min_rows)
        while len(self.ids) - self._past > size:
            self._step(self.ids[self._past : self._past + size], num_rows=0)
            self._past += size

    def next_rows(self) -> LogitsRows:
        """The row after the last id, first in the answer; rows of padding may follow it.

        A slice shorter than the engine's min_rows is padded behind its last id, where it cannot
        change the row in question, and the padding's KV is overwritten by the next call.
        """
        tokens = self.ids[self._past :]
        padding = max(0, self._engine.info.min_rows - len(tokens))
        rows = self._step([*tokens, *[tokens[-1]] * padding], num_rows=1 + padding)
        self._past = len(self.ids)
        return rows

    def _step(self, tokens: Sequence[int], num_rows: int) -> LogitsRows:
        end = self._past + len(tokens) + self._engine.info.scratch_tokens
        num_blocks = -(-end // self._engine.info.block_tokens)
        blocks: Ids = np.arange(num_blocks, dtype=np.int32)
        part = SequenceSlice(_SEQUENCE, np.array(tokens, np.int32), self._past, blocks, num_rows)
        return self._engine.step([part])[0]
