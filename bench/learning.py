"""What replies bring the drafts of later ones, for a model of which nothing is shipped.

The model answers prompts of two kinds: those of a program, which asks NUM_ASKS things of many
topics ("similar"), and those of users, which share some wording ("varied"). None is asked twice.
The replies are replayed: before each call a source drafts at most DRAFTS tokens, and the call
commits those that are right and one more, as a replica does. All variants draft by copies and
n-grams without a draft model:

- copies: of the chat's own text alone;
- learning: with the n-grams and hit rates of all chats of the group before it, in this process;
- kept: the same after a restart in the middle of the chats, from what was kept on disk;
- shipped: copies with the prior in this package, where it has one for the model's tokens.

Tokens per call are means over the second half of the chats; they need no clock.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Run, parser, start
from bench.harness.prompts import PromptSupply, composed_chats
from bench.policy import MAX_TOKENS, Chat, record_replies
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.learnt import LearntConfig, binding_of
from outrider.speculation.learnt_files import LearntKeeper
from outrider.speculation.ngram_store import NgramStatistics, NgramStore
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.shipped import shipped_prior
from outrider.speculation.suffix_drafter import SuffixDrafter

DRAFTS = 4
"""Most drafts of a call."""
LEAST = 0.2
"""A chain ends where it is less likely than this to be right."""
TEMPERATURES = (0.0, 0.8)
NUM_ASKS = 3
"""Things that the program asks of each topic."""
GROUP = b"group"

Statistics = Callable[[int], NgramStatistics | None]
"""What the chat of this number begins with."""


@dataclass(slots=True)
class Counts:
    """Over the replies of a variant."""

    tokens: int = 0
    calls: int = 0
    drafts: int = 0
    right: int = 0

    def cells(self) -> tuple[float, float, float]:
        """Tokens per call, drafts per call, share of drafts that were right."""
        calls = max(1, self.calls)
        return self.tokens / calls, self.drafts / calls, self.right / max(1, self.drafts)


def main() -> int:
    flags = parser("learning", __doc__ or "")
    flags.add_argument("--model", default="", help="a model's name; empty: the default model")
    flags.add_argument("--threads", type=int, default=1, help="threads of the engine")
    arguments = flags.parse_args()
    run = start("learning", arguments)
    spec = lookup(arguments.model)
    vocabulary = load_vocabulary(spec, ModelStore(default_root()))
    engine = create_engine(EngineConfig(model=spec.name, threads=arguments.threads))
    count = 48 if run.quick else 150
    kinds = {"similar": similar(count), "varied": PromptSupply("chat").take(count)}
    try:
        chats = {
            (kind, each): record_replies(engine, vocabulary, texts, MAX_TOKENS["chat"], each)
            for kind, texts in kinds.items()
            for each in TEMPERATURES
        }
    finally:
        engine.close()
    _tabulate(run, spec.name, vocabulary.size, shipped_prior(vocabulary.tokens_digest), chats)
    run.finish()
    return 0


def similar(count: int) -> list[str]:
    """NUM_ASKS things asked of each of `count` / NUM_ASKS topics."""
    asks, topics = composed_chats()
    pairs = itertools.product(topics, asks[:NUM_ASKS])
    return [ask.format(topic=topic) for topic, ask in itertools.islice(pairs, count)]


def _tabulate(
    run: Run,
    model: str,
    size: int,
    prior: NgramPrior | None,
    chats: dict[tuple[str, float], list[Chat]],
) -> None:
    table = run.table(
        f"Drafts without a draft model, {model}: the second half of the chats",
        "prompts",
        "temperature",
        "drafts by",
        "chats",
        "tokens per call",
        "drafts per call",
        "share right",
    )
    found: dict[str, dict[str, float]] = {}
    for (kind, temperature), of_kind in chats.items():
        for name, statistics in _variants(len(of_kind), size, prior).items():
            counts = replay(of_kind, statistics)
            cells = counts.cells()
            table.add(kind, temperature, name, len(of_kind) // 2, *cells)
            found.setdefault(f"{kind}, {temperature:g}", {})[name] = round(cells[0], 3)
    table.note(f"At most {DRAFTS} drafts per call. Replies of up to 160 tokens.")
    run.figures["tokens_per_call"] = found


def _variants(num_chats: int, size: int, prior: NgramPrior | None) -> dict[str, Statistics]:
    learning = NgramStore()
    variants: dict[str, Statistics] = {
        "copies": lambda number: None,
        "learning": lambda number: learning.of(GROUP),
        "kept": _restarted(num_chats // 2, size),
    }
    if prior is not None:
        variants["shipped"] = lambda number: NgramStatistics(prior)
    return variants


def _restarted(at: int, size: int) -> Statistics:
    """Statistics of a process that ends before the chat `at`, and is started again."""
    stores = [NgramStore()]

    def of(number: int) -> NgramStatistics:
        if number == at:
            with tempfile.TemporaryDirectory() as folder:
                path, binding = Path(folder), binding_of(b"bench")
                keeper = LearntKeeper.open(path, binding, size, LearntConfig())
                keeper.save([(GROUP, stores[0].of(GROUP).learnt())])
                again = LearntKeeper.open(path, binding, size, LearntConfig())
            stores[0] = NgramStore(restore=again.kept.restore)
        return stores[0].of(GROUP)

    return of


def replay(chats: Sequence[Chat], statistics: Statistics) -> Counts:
    """The counts over the second half; the first half is learnt from alike."""
    counts = Counts()
    for number, chat in enumerate(chats):
        of_chat = counts if number >= len(chats) // 2 else Counts()
        drafter = SuffixDrafter(
            statistics=statistics(number),
            num_prompt=len(chat.prompt),
            sampled=chat.temperature > 0,
        )
        drafter.extend(chat.prompt)
        at = 0
        while at < len(chat.reply):
            guess = drafter.draft_after((), DRAFTS, LEAST)
            rest = chat.reply[at:]
            right = 0
            while right < min(len(guess.ids), len(rest)) and guess.ids[right] == rest[right]:
                right += 1
            drafter.observe(len(guess.ids), right)
            committed = rest[: right + 1]
            drafter.extend(committed)
            at += len(committed)
            of_chat.calls += 1
            of_chat.tokens += len(committed)
            of_chat.drafts += len(guess.ids)
            of_chat.right += right
        drafter.update_statistics()
    return counts


if __name__ == "__main__":
    sys.exit(main())
