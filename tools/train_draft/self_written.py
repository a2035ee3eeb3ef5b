"""Prompts for a GPU to answer: from the grammar, and such as the target writes itself.

A chat model that is given its template up to where the user speaks goes on with what users say
(Magpie, arXiv 2406.08464). An opener, the first words of the turn, steers it to kinds of prompts
that it seldom writes by itself. No prompt of the benchmarks is answered: `forbidden` has the ids
that would make one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.harness.prompts import composed_chats, load_prompts
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from tools.train_draft.prompts import draw_chat, shipped_grammar

NGRAM = 12
"""So many ids in a row, of a turn with what the template puts around it, are taken to be a copy."""
_MARK = "xyzzy"
_OPENER_SHARE = 0.6
_SYSTEM_SHARE = 0.12
_REPLY_TEMPERATURES = (0.0, 0.8, 1.0)
_TEMPERATURE_WEIGHTS = (50, 40, 10)


@dataclass(frozen=True, slots=True)
class Template:
    """A chat's parts as ids."""

    begin: tuple[int, ...]
    """All before the user's text, with the system message that the template brings itself."""
    answer: tuple[int, ...]
    """All between the user's text and the reply."""
    again: tuple[int, ...]
    """All between a reply that has ended and the user's next text."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a slot of the generator is given: ids that stand, and how to go on."""

    ids: tuple[int, ...]
    writes_prompt: bool
    """Whether the target goes on with the user's turn, else with the reply."""
    temperature: float
    """Of the reply."""
    max_tokens: int
    """Of the reply."""


def template_of(vocabulary: Vocabulary) -> Template:
    """Read off two chats."""
    marked = tuple(vocabulary.encode(_MARK))
    one = vocabulary.encode_chat([Message("user", _MARK)])
    at = _find(one, marked)
    two = vocabulary.encode_chat(
        [Message("user", _MARK), Message("assistant", _MARK), Message("user", _MARK)]
    )
    rest = two[at + len(marked) + (len(one) - at - len(marked)) :]
    inner = rest[len(marked) : len(marked) + _find(rest[len(marked) :], marked)]
    # A reply that has ended has its end already.
    return Template(tuple(one[:at]), tuple(one[at + len(marked) :]), tuple(inner[1:]))


def _find(ids: Sequence[int], part: Sequence[int]) -> int:
    for at in range(len(ids)):
        if tuple(ids[at : at + len(part)]) == tuple(part):
            return at
    raise ValueError("the chat template changes a user's text: prompts cannot be self-written")


def reply_plan(
    rng: random.Random, lengths: Sequence[int], weights: Sequence[int]
) -> tuple[float, int]:
    """Temperature and most tokens of a reply."""
    temperature = rng.choices(_REPLY_TEMPERATURES, _TEMPERATURE_WEIGHTS)[0]
    return temperature, rng.choices(lengths, weights)[0]


def own_seed(
    vocabulary: Vocabulary,
    template: Template,
    rng: random.Random,
    lengths: Sequence[int],
    weights: Sequence[int],
) -> Seed:
    """A chat whose prompt the target writes, with a system message or an opener now and then."""
    grammar = shipped_grammar()
    ids = list(template.begin)
    if rng.random() < _SYSTEM_SHARE:
        chat = [Message("system", grammar.draw("system", rng)), Message("user", _MARK)]
        whole = vocabulary.encode_chat(chat)
        ids = whole[: _find(whole, vocabulary.encode(_MARK))]
    if rng.random() < _OPENER_SHARE:
        ids += vocabulary.encode(grammar.draw("opener", rng))
    return Seed(tuple(ids), True, *reply_plan(rng, lengths, weights))


def grammar_seed(
    vocabulary: Vocabulary,
    number: int,
    rng: random.Random,
    lengths: Sequence[int],
    weights: Sequence[int],
) -> Seed:
    """A training chat of the grammar."""
    chat = draw_chat("train", number)
    ids = tuple(vocabulary.encode_chat(chat.messages))
    return Seed(ids, False, *reply_plan(rng, lengths, weights))


def canonical(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """[V] for every id the first one with the same text but for case and spaces at its ends."""
    firsts: dict[str, int] = {}
    texts = [vocabulary.token_bytes(i).decode("utf-8", "replace") for i in range(vocabulary.size)]
    keys = [text.strip().lower() or text for text in texts]
    return np.array([firsts.setdefault(key, at) for at, key in enumerate(keys)], np.int64)


def forbidden(
    vocabulary: Vocabulary, canonical_ids: npt.NDArray[np.int64], texts: Iterable[str] = ()
) -> npt.NDArray[np.int64]:
    """[n, NGRAM] distinct rows of canonical ids: all NGRAM in a row of the benchmarks' prompts (or
    of `texts`), with what the template puts around a user's turn."""
    prompts = list(texts) or _benchmark_prompts()
    template = template_of(vocabulary)
    head = template.begin[-3:]
    rows = [np.zeros((0, NGRAM), np.int64)]
    for text in prompts:
        ids = np.array([*head, *vocabulary.encode(text), *template.answer])
        if len(ids) >= NGRAM:
            rows.append(np.lib.stride_tricks.sliding_window_view(canonical_ids[ids], NGRAM))
    return np.unique(np.concatenate(rows), axis=0)


def _benchmark_prompts() -> list[str]:
    asks, topics = composed_chats()
    composed = [ask.format(topic=topic) for ask in asks for topic in topics]
    return [prompt.text for prompt in load_prompts(split="all")] + composed
