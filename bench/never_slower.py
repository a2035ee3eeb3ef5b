"""Whether drafts ever make a reply slower: by model, kind of prompt, sampling and chats at once.

Prompts are answered, kind by kind, on a scheduler and an engine in this process, without drafts and
with those that the region makes for itself, in turns. In each round both have the same prompts and
seeds, and a scheduler that has learnt nothing. The replies have to be equal. A cell passes if
tokens come at 0.98 of the speed without drafts or faster.

Kinds: those of `bench/data/held_out` and `bench/data/test`; pieces of documentation to sum up;
JSON by a schema; and calls of a tool, which the reply has to make, for models that have a form for
them. Besides the default model a larger one is asked, if it can be had. The larger one has fewer
cells.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from bench.harness import Run, parser, start
from bench.harness.larger_models import CODER_05B, have_all
from bench.harness.prompts import PromptSupply, Split, load_prompts
from bench.harness.scheduled import Outcome, answer
from bench.harness.statistics import mean_ratio
from bench.peers.lineup import rotated
from bench.structured.schemas import Task, tasks
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.tools import check_tools, tool_text
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.reply_parsing.grammar import call_grammar
from outrider.sampling.grammar import Grammar, GrammarKind, json_schema
from outrider.sampling.params import SamplingParams

WRITTEN: Final = ("chat_short", "chat_long", "code", "languages", "structured", "math")
"""Kinds of the prompts that lie in folders."""
DOCUMENT: Final = "document"
SCHEMA: Final = "JSON by schema"
TOOL: Final = "tool calls"
TEMPERATURES: Final = (0.0, 0.8)
CHATS: Final = (1, 4, 12)
SPLITS: Final[tuple[Split, ...]] = ("held_out", "test")
LEAST_RATIO: Final = 0.98
MAX_TOKENS: Final = 48
_MIN_PROMPTS: Final = 4
"""Of a round."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked of one model."""

    spec: ModelSpec
    kinds: tuple[str, ...]
    chats: tuple[int, ...]
    num_rounds: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and what its reply has to be like; None: free text."""

    ids: list[int]
    grammar: Grammar | None = None


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


def supply(kind: str, vocabulary: Vocabulary) -> Iterator[Asked]:
    """Prompts of a kind, without an end."""

    def in_words(text: str) -> Asked:
        return Asked(vocabulary.encode_chat([Message("user", text)]))

    if kind in WRITTEN:
        written = [it.text for split in SPLITS for it in load_prompts(kind, split=split)]
        return itertools.cycle(map(in_words, written))
    if kind == DOCUMENT:
        documents = PromptSupply(DOCUMENT)
        return (in_words(documents.take(1)[0]) for _ in itertools.count())
    made: Callable[[Task, Vocabulary], Asked] = _by_schema if kind == SCHEMA else _by_tool
    return itertools.cycle(made(task, vocabulary) for task in tasks())


def _by_schema(task: Task, vocabulary: Vocabulary) -> Asked:
    ids = vocabulary.encode_chat([Message("user", task.prompt)])
    return Asked(ids, json_schema(task.schema))


def _by_tool(task: Task, vocabulary: Vocabulary) -> Asked:
    parameters = {"type": "object", "properties": {"it": task.schema}, "required": ["it"]}
    told = {"name": "describe", "description": "Describes a thing.", "parameters": parameters}
    tools = check_tools([tool_text({"type": "function", "function": told})])
    ids = vocabulary.encode_chat([Message("user", f"{task.prompt} Use the tool.")], tools)
    form = vocabulary.reply_format()
    lark = call_grammar(form, tools, vocabulary.find_control, parallel=False)
    return Asked(ids, Grammar(GrammarKind.LARK, lark))


def measure(engine: Engine, vocabulary: Vocabulary, subject: Subject) -> dict[Cell, Rounds]:
    """All cells, round by round, so that a slow minute of the machine meets all of them."""
    supplies = {kind: supply(kind, vocabulary) for kind in subject.kinds}
    found: dict[Cell, Rounds] = {}
    for turn in range(subject.num_rounds):
        for kind, temperature, chats in itertools.product(
            subject.kinds, TEMPERATURES, subject.chats
        ):
            cell = found.setdefault(Cell(kind, temperature, chats), Rounds())
            asked = list(itertools.islice(supplies[kind], max(_MIN_PROMPTS, chats)))
            sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature)
            for drafts in rotated((False, True), turn):
                done = answer(
                    *(engine, vocabulary, [it.ids for it in asked], sampling),
                    concurrency=chats,
                    first_seed=turn * 1000,
                    grammars=[it.grammar for it in asked],
                    drafts=drafts,
                )
                (cell.drafted if drafts else cell.plain).append(done)
        told = f"{subject.spec.name}: round {turn + 1} of {subject.num_rounds}"
        print(told, file=sys.stderr)
    return found


def report(run: Run, found: dict[str, dict[Cell, Rounds]]) -> int:
    """One row for each model, kind and temperature; how many replies drafts changed."""
    table = run.table(
        "Tokens per second with the region's drafts, over those without",
        *("model", "prompts", "temperature", *(f"{chats} at once" for chats in CHATS)),
        *("cells below 0.98", "replies changed"),
    )
    slow: dict[str, float] = {}
    num_changed = 0
    for model, cells in found.items():
        for (kind, temperature), group in itertools.groupby(
            cells, lambda it: (it.kind, it.temperature)
        ):
            row = {it.chats: cells[it] for it in group}
            below = 0
            for chats, rounds in row.items():
                name = f"{model}, {kind}, T={temperature}, {chats} at once"
                run.samples(name, rounds.ratios, unit="ratio")
                if rounds.mean < LEAST_RATIO:
                    slow[name] = rounds.mean
                    below += 1
            changed = sum(it.num_changed for it in row.values())
            num_changed += changed
            speeds = [table.mean_ratio(row[it].ratios) if it in row else "not run" for it in CHATS]
            table.add(model, kind, temperature, *speeds, below, changed)
    every = [it for cells in found.values() for it in cells.values()]
    run.figures.update(
        cells=len(every),
        cells_below=slow,
        least_ratio=min(it.mean for it in every),
        changed=num_changed,
    )
    return num_changed


def subjects(run: Run) -> list[Subject]:
    """The models that can be had here."""
    if run.quick:
        return [Subject(DEFAULT_MODEL, (WRITTEN[0], DOCUMENT, SCHEMA), CHATS, 1)]
    files, missing = have_all((CODER_05B,))
    run.setting("missing", **missing)
    larger = (
        ModelSpec(CODER_05B.name, f"file:{path}", CODER_05B.sha256) for path in files.values()
    )
    return [
        Subject(DEFAULT_MODEL, (*WRITTEN, DOCUMENT, SCHEMA), CHATS, 4),
        *(Subject(it, ("code", DOCUMENT, SCHEMA, TOOL), CHATS[:2], 3) for it in larger),
    ]


def main() -> int:
    run = start("never_slower", parser("never_slower", __doc__ or "").parse_args())
    store = ModelStore(default_root())
    run.setting("outrider", max_tokens=MAX_TOKENS)
    found: dict[str, dict[Cell, Rounds]] = {}
    for subject in subjects(run):
        vocabulary = load_vocabulary(subject.spec, store)
        engine = load_engine(subject.spec, store, EngineConfig(prepare_first=True))
        with contextlib.closing(engine):
            found[subject.spec.name] = measure(engine, vocabulary, subject)
    num_changed = report(run, found)
    run.finish()
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
