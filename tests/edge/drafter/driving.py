"""A drafter on a fake engine, in virtual time, with every row checked against a fresh engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from outrider.engines.base import Logits, LogitsRows, SequenceSlice
from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from services.edge.drafter.drafter import Drafter, EngineCall, run
from services.edge.drafter.protocol import CommitTokens, DraftUpdate, OpenReply
from services.edge.drafter.settings import DrafterLimits

OPTIONS = FakeOptions(vocabulary_size=32, block_tokens=4, num_blocks=64, max_context_tokens=256)


def believing(*curve: float) -> DraftCalibration:
    """The same curve everywhere in the reply, greedy and sampled."""
    return DraftCalibration(greedy=(curve,), sampled=(curve,))


HALF_SURE = believing(0.3, 0.9)


def fresh_rows(options: FakeOptions, ids: Sequence[int], num_rows: int = 1) -> Logits:
    """[num_rows, V] the last rows after `ids`, computed in one go by an engine of its own."""
    engine = FakeEngine(replace(options, num_blocks=len(ids) // options.block_tokens + 2))
    tokens = np.array(ids, np.int32)
    blocks = np.arange(engine.info.num_blocks, dtype=np.int32)
    engine.open(0, tokens)
    return engine.step([SequenceSlice(0, tokens, 0, blocks, num_rows)])[0].logits


def reply_of(options: FakeOptions, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """What a target of these options says."""
    ids, sampler = list(prompt), Sampler(params, options.vocabulary_size, prompt)
    while len(ids) < len(prompt) + params.max_tokens:
        ids.append(sampler.choose(fresh_rows(options, ids)[0], len(ids)))
        sampler.observe(ids[-1])
    return ids[len(prompt) :]


class Bench:
    """Runs a drafter's calls; what `meanwhile` does happens while a call is under way."""

    def __init__(
        self,
        options: FakeOptions = OPTIONS,
        limits: DrafterLimits | None = None,
        calibration: DraftCalibration = HALF_SURE,
    ) -> None:
        self.options = options
        self.engine = FakeEngine(options)
        self.drafter = Drafter(self.engine.info, limits or DrafterLimits(), calibration)
        self.texts: dict[int, list[int]] = {}
        """Final ids by session."""
        self.updates: dict[int, DraftUpdate] = {}
        self.now = 0.0
        self.is_paused = False

    def open(
        self,
        number: int,
        prompt: Sequence[int],
        params: SamplingParams,
        reply: Sequence[int] = (),
        group: bytes = b"",
        prefixes: tuple[int, ...] = (),
    ) -> None:
        self.texts[number] = [*prompt, *reply]
        opening = OpenReply(
            number, tuple(prompt), tuple(reply), params, group=group, prefixes=prefixes
        )
        self.drafter.open(opening, self.now)

    def pin(self, ids: Sequence[int]) -> bool:
        """A static prefix, as a drafter's process computes it."""
        if not self.drafter.open_prefix(ids, self.now):
            return False
        self.texts[0] = list(ids)
        while not self.drafter.is_prefix_computed:
            assert self.turn() is not None
        return self.drafter.pin_prefix()

    def commit(self, number: int, ids: Sequence[int], lead: int = 65_535) -> None:
        self.texts[number] += ids
        self.drafter.commit(CommitTokens(number, tuple(ids), lead), self.now)

    def close(self, number: int) -> None:
        self.texts.pop(number, None)
        self.drafter.close(number)

    def turn(self, overlapped_work: Callable[[], None] = lambda: None) -> EngineCall | None:
        """One call, if there is one to make."""
        call = self.drafter.schedule(self.now, is_paused=self.is_paused)
        self.now += 0.001
        if call is not None:
            texts = [self._text(part.session, part.slice) for part in call.scheduled]
            rows = run(self.engine, call, overlapped_work)
            self._check(call, texts, rows)
            self.drafter.apply(call, rows, 0.001)
        for update in self.drafter.take_updates(self.now):
            self.updates[update.session] = update
        return call

    def settle(self) -> int:
        """Turns until there is nothing to compute; how many calls that were."""
        num_calls = 0
        while self.turn() is not None:
            num_calls += 1
            assert num_calls < 10_000
        return num_calls

    def _text(self, number: int, part: SequenceSlice) -> list[int]:
        """The text that the slice's last row is to follow."""
        session = self.drafter._sessions[number]
        branch = session.branch_of(part.sequence)
        assert branch is not None
        ids = session.ids(branch, 0, part.past + len(part.tokens))
        assert ids[: len(self.texts[number])] == self.texts[number][: len(ids)]
        assert part.tokens.tolist() == ids[part.past :]
        return ids

    def _check(self, call: EngineCall, texts: list[list[int]], rows: list[LogitsRows]) -> None:
        """LogitsRows read all KV before them: right rows are right KV."""
        for part, ids, answer in zip(call.scheduled, texts, rows, strict=True):
            if part.slice.num_rows:
                assert np.array_equal(answer.logits, fresh_rows(self.options, ids))
