"""Chats to have the target answer: a pure function of a split and a number.

- `train`;
- `held_out`: other prompts of the same kinds. A hash of its text says to which of the two a prompt
  belongs, so no number of draws brings one into both;
- `unlike`: kinds that no training prompt has;
- `bench_held_out`, `bench_tuning`: the benchmarks' prompts, written by hand. What is drawn is never
  one of theirs, nor one of `bench/data/test`, which has no split here;
- `calibration`: more of `held_out` and `unlike`.

Prompts come from a small generative grammar (`grammar/`), in which names stand for alternatives
that may hold names again. A grammar file has sections `[name]`, each followed by its alternatives,
one per line (`\\n` is a line break, `#` begins a comment). In an alternative, `{name}` stands for
one of that section's and `{2-99}` for an integer between the two. A section `[kind:x*3]` or
`[held:x]` is a kind of prompt, drawn three times as often as one without a number. Then prompts are
changed as people do who type them: courtesy, constraints, haste and typos.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from bench.harness.prompts import Folder, interleaved, load_prompts, written_texts
from outrider.models.chat import Message

Split: TypeAlias = Literal[
    "train", "held_out", "unlike", "bench_held_out", "bench_tuning", "calibration"
]
SPLITS: tuple[Split, ...] = get_args(Split)

_HELD_OUT_SHARE = 32
"""One prompt in this many is held out."""
_SYSTEM_SHARE = 0.15
_FOLLOW_UP_SHARE = 0.12
_LENGTHS = (12, 20, 32, 56, 96, 192)
_LENGTH_WEIGHTS = (20, 26, 26, 16, 9, 3)
"""Mostly short replies: their first tokens are the hardest to predict, and the first that the user
sees."""
_CALIBRATION_FROM = 1_000_000
_MEASURED_TOKENS = 64
_MEASURED_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """How one reply is to be generated."""

    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat as the user begins it."""

    kind: str
    messages: tuple[Message, ...]
    follow_ups: tuple[str, ...]
    """The user's messages after each further reply."""
    plan: ReplyPlan


def draw_chat(split: Split, number: int) -> Chat:
    """The chat of this number."""
    if split == "bench_held_out":
        return _bench_chat("held_out", number)
    if split == "bench_tuning":
        return _bench_chat("tuning", number)
    if split == "calibration":
        return draw_chat(("held_out", "unlike")[number % 2], _CALIBRATION_FROM + number)
    grammar, rng = shipped_grammar(), random.Random(f"{split}:{number}")
    kind, text = _prompt(grammar, split, rng)
    messages = [Message("user", text)]
    if rng.random() < _SYSTEM_SHARE:
        messages.insert(0, Message("system", grammar.draw("system", rng)))
    follow_ups: tuple[str, ...] = ()
    if rng.random() < _FOLLOW_UP_SHARE:
        follow_ups = tuple(grammar.draw("followup", rng) for _ in range(rng.randint(1, 2)))
    return Chat(kind.partition(":")[2], tuple(messages), follow_ups, _plan(split, rng))


def _bench_chat(folder: Folder, number: int) -> Chat:
    """Every prompt twice: greedy, then sampled."""
    prompts = interleaved(load_prompts(split=folder))
    prompt = prompts[number // 2 % len(prompts)]
    plan = ReplyPlan(_MEASURED_TOKENS, _MEASURED_TEMPERATURES[number % 2], number)
    return Chat(prompt.kind, (Message("user", prompt.text),), (), plan)


def _prompt(grammar: Grammar, split: Split, rng: random.Random) -> tuple[str, str]:
    """A kind and a prompt of it that belongs to the split."""
    kinds = grammar.held_out if split == "unlike" else grammar.kinds
    while True:
        # The kind too is drawn anew: a small one may have no prompt that is held out.
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        text = grammar.draw(kind, rng)
        # Before it is roughened: a typo does not make another prompt of it.
        if split != "unlike" and _is_held_out(text) != (split == "held_out"):
            continue
        text = roughened(text, grammar, rng)
        if text not in _written():
            return kind, text


@cache
def _written() -> frozenset[str]:
    return written_texts()


def _is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % _HELD_OUT_SHARE == 0


def _plan(split: Split, rng: random.Random) -> ReplyPlan:
    """Half of all replies greedy; replies to be measured are of one length."""
    seed = rng.getrandbits(48)
    if split != "train":
        return ReplyPlan(_MEASURED_TOKENS, rng.choice(_MEASURED_TEMPERATURES), seed)
    temperature = rng.choices((0.0, 0.8, 1.0), (50, 40, 10))[0]
    return ReplyPlan(rng.choices(_LENGTHS, _LENGTH_WEIGHTS)[0], temperature, seed)


FOLDER = Path(__file__).parent / "grammar"
_SLOT = re.compile(r"\{(?:([a-z][a-z0-9]*)|(\d+)-(\d+))\}")
_HEADER = re.compile(r"\[((?:(kind|held):)?[a-z0-9]+)(?:\*(\d+))?\]")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Grammar:
    """Sections, and the kinds among them with their weights."""

    sections: dict[str, tuple[str, ...]]
    kinds: dict[str, int]
    held_out: dict[str, int]

    def expand(self, text: str, rng: random.Random, depth: int = 0) -> str:
        """`text` with every name replaced. Raises KeyError for a name that is no section, and
        RecursionError for sections that need each other."""
        if depth > _MAX_DEPTH:
            raise RecursionError(f"the grammar does not end: {text}")

        def replace(slot: re.Match[str]) -> str:
            name, low, high = slot.groups()
            if name is None:
                return str(rng.randint(int(low), int(high)))
            return self.draw(name, rng, depth + 1)

        return _SLOT.sub(replace, text)

    def draw(self, section: str, rng: random.Random, depth: int = 0) -> str:
        """One of the section's alternatives, expanded. Raises as `expand`."""
        return self.expand(rng.choice(self.sections[section]), rng, depth)


def parse(lines: Iterable[str]) -> Grammar:
    """A grammar from its lines. Raises ValueError for a section that is there twice or empty, and
    for a line before the first section."""
    grammar = Grammar({}, {}, {})
    alternatives: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        header = _HEADER.fullmatch(line.strip())
        if header is None:
            if not name:
                raise ValueError(f"a line before the first section: {line!r}")
            alternatives[name].append(line.strip("\n").replace("\\n", "\n"))
            continue
        name, role = header[1], header[2]
        if name in alternatives:
            raise ValueError(f"section {name!r} is there twice")
        alternatives[name] = []
        if role:
            (grammar.kinds if role == "kind" else grammar.held_out)[name] = int(header[3] or 1)
    if empty := [name for name, found in alternatives.items() if not found]:
        raise ValueError(f"sections without alternatives: {empty}")
    grammar.sections.update({name: tuple(found) for name, found in alternatives.items()})
    return grammar


@cache
def shipped_grammar() -> Grammar:
    """The grammar of this folder's files."""
    files = sorted(FOLDER.glob("*.txt"))
    return parse(line for path in files for line in path.read_text("utf-8").splitlines())


_LONGEST_ROUGH = 160
"""Characters; longer prompts are pasted rather than typed."""


def roughened(text: str, grammar: Grammar, rng: random.Random) -> str:
    """`text` as someone might have typed it; most of the time as it is."""
    if len(text) > _LONGEST_ROUGH:
        return text
    luck = rng.random()
    if luck < 0.08:
        return f"{grammar.draw('polite', rng)} {text[:1].lower()}{text[1:]}"
    if luck < 0.16:
        return f"{text} {grammar.draw('constraint', rng)}"
    if luck < 0.23:
        return text.lower().rstrip("?.!")
    if luck < 0.28:
        return _mistyped(text, rng)
    if luck < 0.30:
        return text.upper()
    return text


def _mistyped(text: str, rng: random.Random) -> str:
    """Two letters swapped, one left out or one doubled, once or twice."""
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(max(1, len(text) - 1))
        first, second, rest = text[at : at + 1], text[at + 1 : at + 2], text[at + 2 :]
        middle = rng.choice((second + first, second, first + first + second))
        text = text[:at] + middle + rest
    return text
