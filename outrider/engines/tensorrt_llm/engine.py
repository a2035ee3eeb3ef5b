"""The engine interface over TensorRT-LLM: each slice is a request of its own.

The runtime cannot be given drafts, so a slice's tokens are sent as a prompt: the tokens before it,
its own tokens, the drafts. The runtime finds what it computed before in its reuse tree, computes
the rest in one pass, and answers with log probabilities of the prompt positions it computed, the
last of which are the rows. Between slices the runtime keeps no state but KV.

Drafts that the runtime has seen before, in an earlier slice or another session, come from the tree
and get no row. The first row can always be obtained by a request that ends there: its last token is
computed whatever is cached.

A model may score padding ids, which no tokenizer has. Rows are used up to the first one with too
few other ids among its likeliest. If that is the first row, it is asked for again with as many more
ids as there are padding ids, so that enough others are among them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
import structlog

from outrider.engines.base import (
    EngineInfo,
    Ids,
    LogitsRows,
    OverlappedWork,
    SequenceSlice,
    check_block_ids,
    check_opening,
    check_slices,
    no_work,
)
from outrider.engines.tensorrt_llm.api import Llm, TokenLogprobs
from outrider.engines.tensorrt_llm.checkpoint import Checkpoint
from outrider.engines.tensorrt_llm.reports import (
    CacheChanges,
    RuntimeStats,
    cache_changes,
    latest_stats,
)
from outrider.engines.tensorrt_llm.requests import Flight, Request, Ticket
from outrider.engines.tensorrt_llm.rows import last_rows, leading_rows, whole_rows
from outrider.errors import EngineError

log = structlog.get_logger()

_SPARE_ROWS = 8
"""Each unused row costs the runtime time: if a slice would have more than this, the tokens before
the needed rows are sent ahead without rows."""
_TELL_S = 10.0
_MAX_CAUTION = 16
"""Slices without drafts after the latest of several short answers."""

_Dialogue: TypeAlias = Generator[Request, TokenLogprobs | None, LogitsRows]
"""Yields requests, is sent their answers, returns a slice's rows."""


@dataclass(slots=True)
class _Sequence:
    ids: Ids
    """[n] all known tokens; those a later slice rewrites are void until then."""
    salt: bytes
    num_candidates: int
    sent_ahead: Ticket | None = None
    """A prefill chunk that has not been waited for."""
    caution: int = 0
    """Slices to go without drafts after the next short answer."""
    num_cautious: int = 0
    """Slices to go without drafts now: the text ahead seems to be cached, drafts and all."""

    def write(self, part: SequenceSlice) -> None:
        end = part.past + len(part.tokens)
        self.ids = np.concatenate([self.ids[: part.past], part.tokens, self.ids[end:]])

    def learn(self, short: bool) -> None:
        self.caution = min(_MAX_CAUTION, 2 * self.caution or 1) if short else 0
        self.num_cautious = self.caution

    def request(self, end: int, num_final: int, num_candidates: int) -> Request:
        """The tokens before `end`; without candidates no rows are asked for."""
        return Request(tuple(self.ids[:end].tolist()), num_final, num_candidates, self.salt)


class TensorRtLlmEngine:
    """Implements base.Engine; loading.load_engine makes one."""

    def __init__(self, llm: Llm, flight: Flight, info: EngineInfo, checkpoint: Checkpoint) -> None:
        """`flight` has carried a request already: before the first, the runtime has no reports."""
        self._llm = llm
        self._info = info
        self._num_ids = min(info.vocabulary_size, checkpoint.num_tokens)
        self._num_padding_ids = checkpoint.vocabulary_size - self._num_ids
        self._flight = flight
        self._sequences: dict[int, _Sequence] = {}
        self._closed = False
        self._tell_at = 0.0
        self.busy_s = 0.0
        """See base.Engine: from a call's first request to the runtime's last answer."""
        self.num_short_answers = 0
        """Slices some of whose rows were missing because the runtime took them from its cache."""
        self.num_padded_rows = 0
        """First rows asked for again because padding ids were among their likeliest."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        self._check_not_closed()
        check_opening(self._info, self._sequences, sequence, prompt)
        most = self._info.num_candidates
        wanted = min(num_candidates or most, most)
        self._sequences[sequence] = _Sequence(np.array(prompt, np.int32), salt, wanted)

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        """See base.Engine. When one request fails, none is left in flight."""
        self._check_not_closed()
        check_slices(self._info, self._sequences, slices)
        self._check_past(slices)
        begin = time.monotonic()
        try:
            rows = self._converse(slices, overlapped_work)
        except Exception:
            self._flight.clear()
            raise
        now = time.monotonic()
        self.busy_s += now - begin
        self._tell(now)
        return rows

    def close_sequence(self, sequence: int) -> None:
        """See base.Engine. A prefill chunk still being computed is aborted; one that cannot be is
        computed in vain."""
        self._check_not_closed()
        closed = self._sequences.pop(sequence, None)
        if closed is not None and closed.sent_ahead is not None:
            try:
                self._flight.abort(closed.sent_ahead)
            except EngineError as error:
                log.warning("trtllm_prefill_not_aborted", error=error.message)

    def copy_block(self, source: int, target: int) -> None:
        """Does nothing: the runtime's own tree shares equal prefixes."""
        self._check_not_closed()
        check_block_ids(self._info, (source, target))

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        self._check_not_closed()
        raise EngineError("TensorRT-LLM keeps its KV itself; blocks cannot be exported")

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        self._check_not_closed()
        raise EngineError("TensorRT-LLM keeps its KV itself; blocks cannot be imported")

    def stats(self) -> RuntimeStats | None:
        """The runtime's newest statistics since the last call; None without any."""
        self._check_not_closed()
        return latest_stats(self._llm.get_stats(timeout=0))

    def cache_changes(self) -> CacheChanges:
        """The runtime's KV blocks that were stored and removed since the last call."""
        self._check_not_closed()
        return cache_changes(self._llm.get_kv_cache_events(timeout=0))

    def close(self) -> None:
        """See base.Engine. Raises EngineError if the runtime does not stop."""
        if self._closed:
            return
        self._closed = True
        try:
            self._flight.clear()
        finally:
            self._llm.shutdown()

    def _converse(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork
    ) -> list[LogitsRows]:
        """Compute all slices side by side: one request of each is in flight at a time.

        Those that wait for a prefill chunk sent earlier come last, after the overlapped work, so
        that it is not delayed. If all slices are chunks whose end is not awaited here, the work is
        done once they are sent.
        """
        dialogues = [self._dialogue(part) for part in slices]
        ahead = [self._sequences[part.sequence].sent_ahead is not None for part in slices]
        rows: dict[int, LogitsRows] = {}
        answers: dict[int, TokenLogprobs | None]
        answers = dict.fromkeys(sorted(range(len(slices)), key=ahead.__getitem__))
        while answers:
            tickets: dict[int, Ticket] = {}
            for index, answer in answers.items():
                if ahead[index]:
                    overlapped_work()
                    overlapped_work = no_work
                try:
                    tickets[index] = self._flight.submit(dialogues[index].send(answer))
                except StopIteration as end:
                    rows[index] = end.value
            overlapped_work()
            overlapped_work = no_work
            answers = {index: self._flight.land(ticket) for index, ticket in tickets.items()}
        return [rows[index] for index in range(len(slices))]

    def _dialogue(self, part: SequenceSlice) -> _Dialogue:
        sequence = self._sequences[part.sequence]
        self._settle(sequence)
        sequence.write(part)
        end = part.past + len(part.tokens)
        first = end - part.num_rows
        if part.num_rows == 0:
            sequence.sent_ahead = self._flight.submit(sequence.request(end, end, 0))
            return self._rows(sequence, None, 0)
        if first - part.past > _SPARE_ROWS:
            yield sequence.request(first, first, 0)
        return (yield from self._asked_rows(sequence, first, part.num_rows))

    def _asked_rows(self, sequence: _Sequence, first: int, num_rows: int) -> _Dialogue:
        last = self._rows(sequence, None, 0)
        padded = False
        if num_rows > 1 and sequence.num_cautious == 0:
            answer = yield sequence.request(first + num_rows, first + 1, sequence.num_candidates)
            last = self._rows(sequence, answer, num_rows)
            short = len(last.logits) < num_rows
            sequence.learn(short)
            if not short:
                whole = whole_rows(last)
                if len(whole.logits):
                    return whole
                padded = True
            self.num_short_answers += short
        else:
            sequence.num_cautious = max(0, sequence.num_cautious - 1)
        row = yield from self._first_row(sequence, first, padded=padded)
        return row if num_rows == 1 else whole_rows(leading_rows(row, last, num_rows))

    def _first_row(self, sequence: _Sequence, first: int, *, padded: bool) -> _Dialogue:
        """The row behind position `first`; `padded`: it is known to have padding ids in front."""
        plain, wide = sequence.num_candidates, sequence.num_candidates + self._num_padding_ids
        for num_ranks in (wide,) if padded else (plain, wide):
            self.num_padded_rows += num_ranks > plain
            answer = yield sequence.request(first + 1, first + 1, num_ranks)
            row = whole_rows(self._rows(sequence, answer, 1, num_ranks))
            if len(row.logits):
                return row
        raise EngineError("TensorRT-LLM gave no row; check prompt_logprobs in this version")

    def _rows(
        self, sequence: _Sequence, answer: TokenLogprobs | None, num_rows: int, num_ranks: int = 0
    ) -> LogitsRows:
        return last_rows(answer, num_rows, sequence.num_candidates, self._num_ids, num_ranks)

    def _settle(self, sequence: _Sequence) -> None:
        if sequence.sent_ahead is not None:
            self._flight.land(sequence.sent_ahead)
            sequence.sent_ahead = None

    def _tell(self, now: float) -> None:
        """Log the runtime's state now and then; it also keeps the runtime's queues short."""
        if now < self._tell_at:
            return
        self._tell_at = now + _TELL_S
        try:
            stats = self.stats()
            changes = self.cache_changes()
        except Exception:
            log.exception("trtllm_statistics_missing")
            self._tell_at = math.inf
            return
        log.info(
            "trtllm_stats",
            **({} if stats is None else asdict(stats)),
            blocks_stored=changes.blocks_stored,
            blocks_removed=changes.blocks_removed,
            short_answers=self.num_short_answers,
            padded_rows=self.num_padded_rows,
        )

    def _check_past(self, slices: Sequence[SequenceSlice]) -> None:
        for part in slices:
            known = len(self._sequences[part.sequence].ids)
            if part.past > known:
                raise EngineError(
                    f"sequence {part.sequence} has {known} known tokens, a slice begins at "
                    f"{part.past}; send those in between first"
                )

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; create a new one")
