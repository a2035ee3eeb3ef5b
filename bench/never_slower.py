"""Whether drafts ever make a reply slower, by kind of prompt, sampling and chats at once.

Prompts of `bench/data/held_out` and `bench/data/test`, kind by kind, are answered on a scheduler
and an engine in this process, without drafts and with those that the region makes for itself, in
turns. In each round both have the same prompts and seeds, and a scheduler that has learnt nothing.
The replies have to be equal. A cell passes if tokens come at 0.98 of the speed without drafts or
faster.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.harness import Run, parser, start
from bench.harness.prompts import Split, load_prompts
from bench.harness.scheduled import Outcome, answer
from bench.harness.statistics import mean_ratio
from bench.peers.lineup import rotated
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

KINDS: Final = ("chat_short", "chat_long", "code", "languages", "structured", "math")
TEMPERATURES: Final = (0.0, 0.8)
CHATS: Final = (1, 4, 12)
SPLITS: Final[tuple[Split, ...]] = ("held_out", "test")
LEAST_RATIO: Final = 0.98
MAX_TOKENS: Final = 48
_MIN_PROMPTS: Final = 4
"""Of a round."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition."""

    kind: str
    temperature: float
    chats: int


@dataclass(slots=True)
class Rounds:
    """What was measured in one cell."""

    plain: list[Outcome] = field(default_factory=list)
    drafted: list[Outcome] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Tokens per second with drafts over those without, by round."""
        pairs = zip(self.drafted, self.plain, strict=True)
        return [a.tokens_per_s / b.tokens_per_s for a, b in pairs]

    @property
    def mean(self) -> float:
        """Their geometric mean."""
        return mean_ratio(self.ratios)[0]

    @property
    def num_changed(self) -> int:
        """Replies that drafts changed."""
        pairs = zip(self.drafted, self.plain, strict=True)
        return sum(a != b for x, y in pairs for a, b in zip(x.replies, y.replies, strict=True))


def measure(
    engine: Engine, vocabulary: Vocabulary, kinds: Sequence[str], num_rounds: int
) -> dict[Cell, Rounds]:
    """All cells, round by round, so that a slow minute of the machine meets all of them."""
    ids = {
        kind: itertools.cycle(
            vocabulary.encode_chat([Message("user", it.text)])
            for split in SPLITS
            for it in load_prompts(kind, split=split)
        )
        for kind in kinds
    }
    found: dict[Cell, Rounds] = {}
    for turn in range(num_rounds):
        for kind, temperature, chats in itertools.product(kinds, TEMPERATURES, CHATS):
            cell = found.setdefault(Cell(kind, temperature, chats), Rounds())
            prompts = list(itertools.islice(ids[kind], max(_MIN_PROMPTS, chats)))
            sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature)
            for drafts in rotated((False, True), turn):
                done = answer(
                    *(engine, vocabulary, prompts, sampling),
                    concurrency=chats,
                    first_seed=turn * 1000,
                    drafts=drafts,
                )
                (cell.drafted if drafts else cell.plain).append(done)
        print(f"round {turn + 1} of {num_rounds}", file=sys.stderr)
    return found


def report(run: Run, found: dict[Cell, Rounds]) -> int:
    """One row for each kind and temperature; how many replies drafts changed."""
    table = run.table(
        "Tokens per second with the region's drafts, over those without",
        *("prompts", "temperature", *(f"{chats} at once" for chats in CHATS)),
        *("cells below 0.98", "replies changed"),
    )
    slow: dict[str, float] = {}
    num_changed = 0
    for (kind, temperature), group in itertools.groupby(
        found, lambda it: (it.kind, it.temperature)
    ):
        cells = list(group)
        below = 0
        for cell in cells:
            name = f"{kind}, T={temperature}, {cell.chats} at once"
            run.samples(name, found[cell].ratios, unit="ratio")
            if found[cell].mean < LEAST_RATIO:
                slow[name] = found[cell].mean
                below += 1
        changed = sum(found[cell].num_changed for cell in cells)
        num_changed += changed
        speeds = [table.mean_ratio(found[cell].ratios) for cell in cells]
        table.add(kind, temperature, *speeds, below, changed)
    run.figures.update(
        cells=len(found),
        cells_below=slow,
        least_ratio=min(it.mean for it in found.values()),
        changed=num_changed,
    )
    return num_changed


def main() -> int:
    run = start("never_slower", parser("never_slower", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    run.setting("outrider", model=DEFAULT_MODEL.name, max_tokens=MAX_TOKENS)
    with contextlib.closing(create_engine(EngineConfig(prepare_first=True))) as engine:
        kinds, num_rounds = (KINDS[:1], 1) if run.quick else (KINDS, 4)
        found = measure(engine, vocabulary, kinds, num_rounds)
    num_changed = report(run, found)
    run.finish()
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
