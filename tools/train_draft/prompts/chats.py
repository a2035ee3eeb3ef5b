"""Chats to have the target answer: a pure function of a split and a number.

- `train`;
- `held_out`: other prompts of the same kinds. A hash of its text says to which of the two a prompt
  belongs, so no number of draws brings one into both;
- `unlike`: kinds that no training prompt has;
- `bench_held_out`, `bench_tuning`: the benchmarks' prompts, written by hand and never trained on;
- `calibration`: more of `held_out` and `unlike`.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from bench.harness.prompts import Folder, interleaved, load_prompts
from outrider.models.chat import Message
from tools.train_draft.prompts.expansion import Grammar, shipped_grammar
from tools.train_draft.prompts.surface import roughened

Split: TypeAlias = Literal[
    "train", "held_out", "unlike", "bench_held_out", "bench_tuning", "calibration"
]
SPLITS: tuple[Split, ...] = get_args(Split)

_HELD_OUT_SHARE = 32
"""One prompt in so many is held out."""
_SYSTEM_SHARE = 0.15
_FOLLOW_UP_SHARE = 0.12
_LENGTHS = (12, 20, 32, 56, 96, 192)
_LENGTH_WEIGHTS = (20, 26, 26, 16, 9, 3)
"""Many short replies rather than few long ones: their first tokens are the hardest to foretell,
and what the user sees first."""
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
    """What the user says after each further reply."""
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
        if split == "unlike" or _is_held_out(text) == (split == "held_out"):
            return kind, roughened(text, grammar, rng)


def _is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % _HELD_OUT_SHARE == 0


def _plan(split: Split, rng: random.Random) -> ReplyPlan:
    """Half of all replies greedy; replies to be measured are of one length."""
    seed = rng.getrandbits(48)
    if split != "train":
        return ReplyPlan(_MEASURED_TOKENS, rng.choice(_MEASURED_TEMPERATURES), seed)
    temperature = rng.choices((0.0, 0.8, 1.0), (50, 40, 10))[0]
    return ReplyPlan(rng.choices(_LENGTHS, _LENGTH_WEIGHTS)[0], temperature, seed)
