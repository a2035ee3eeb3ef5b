"""What the target is given to write prompts, and which prompts are kept out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.harness.prompts import load_prompts
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from tools.train_draft.self_written import (
    NGRAM,
    canonical,
    forbidden,
    grammar_seed,
    own_seed,
    template_of,
)

pytestmark = pytest.mark.model
_LENGTHS, _WEIGHTS = (8, 16), (1, 1)


def test_a_template_is_what_stands_around_texts(vocabulary: Vocabulary) -> None:
    template = template_of(vocabulary)
    one = [*template.begin, *vocabulary.encode("Why?"), *template.answer]
    assert one == vocabulary.encode_chat([Message("user", "Why?")])
    # The reply ends with the id that also ends a user's turn.
    reply = [*vocabulary.encode("So."), template.answer[0]]
    two = [*one, *reply, *template.again, *vocabulary.encode("Oh."), *template.answer]
    messages = [Message("user", "Why?"), Message("assistant", "So."), Message("user", "Oh.")]
    assert two == vocabulary.encode_chat(messages)


def test_own_prompts_begin_a_users_turn(vocabulary: Vocabulary) -> None:
    template = template_of(vocabulary)
    header = template.begin[-3:]
    seeds = [
        own_seed(vocabulary, template, random.Random(n), _LENGTHS, _WEIGHTS) for n in range(200)
    ]
    assert all(seed.writes_prompt and seed.max_tokens in _LENGTHS for seed in seeds)
    texts = {vocabulary.decode(seed.ids) for seed in seeds}
    assert len(texts) > 50
    for seed in seeds:
        at = max(i for i in range(len(seed.ids)) if seed.ids[i : i + 3] == header)
        assert template.answer[0] not in seed.ids[at:]
    assert {seed.temperature for seed in seeds} == {0.0, 0.8, 1.0}


def test_a_grammars_seed_is_a_whole_prompt(vocabulary: Vocabulary) -> None:
    template = template_of(vocabulary)
    seed = grammar_seed(vocabulary, 7, random.Random(0), _LENGTHS, _WEIGHTS)
    assert not seed.writes_prompt
    assert seed.ids[-len(template.answer) :] == template.answer


def test_case_and_spaces_make_no_other_id(vocabulary: Vocabulary) -> None:
    ids = canonical(vocabulary)
    (plain,), (spaced,) = vocabulary.encode("why"), vocabulary.encode(" Why")
    assert plain != spaced and ids[plain] == ids[spaced]
    assert np.array_equal(ids[ids], ids)


def test_every_prompt_of_the_benchmarks_is_kept_out(vocabulary: Vocabulary) -> None:
    ids = canonical(vocabulary)
    rows = {row.tobytes() for row in forbidden(vocabulary, ids)}
    template = template_of(vocabulary)
    for prompt in load_prompts(split="all"):
        chat = ids[[*template.begin, *vocabulary.encode(prompt.text), *template.answer]]
        if len(vocabulary.encode(prompt.text)) < NGRAM - 9:
            continue  # two or three tokens, such as a greeting
        grams = np.lib.stride_tricks.sliding_window_view(chat, NGRAM)
        assert any(gram.tobytes() in rows for gram in grams), prompt.id
    other = ids[[*template.begin, *vocabulary.encode("Tell me of newts."), *template.answer]]
    grams = np.lib.stride_tricks.sliding_window_view(other, NGRAM)
    assert not any(gram.tobytes() in rows for gram in grams)
