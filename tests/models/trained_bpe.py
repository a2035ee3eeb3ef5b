"""Small byte-level BPE vocabularies, trained here."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import pre_tokenizers, trainers

from outrider.models.bpe import VocabularyDefinition, build_tokenizer
from outrider.models.pre_tokenizers import pre_tokenizer_of
from tests.models import corpus


@cache
def trained(pre: str, num_tokens: int = 700) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens and merges ("left right") of so many tokens, all bytes among them, of texts that the
    pre-tokenizer of this name cuts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    untrained = VocabularyDefinition(
        tokens=alphabet,
        merges=(),
        pipeline=pre_tokenizer_of(pre).pipeline,
        control_ids=(),
        user_defined_ids=(),
        stop_ids=(),
        bos_token="",
        eos_token="",
        chat_template="",
    )
    tokenizer = build_tokenizer(untrained)
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*corpus.LANGUAGES, *corpus.CODE] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return tuple(tokens), tuple(merges)
