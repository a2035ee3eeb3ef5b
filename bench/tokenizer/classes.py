"""For each class of tokenizer that is served, ids of whole books against those of the file's own
tokenizer in `tokenizers`: published files, and small ones trained here on the beginnings of the
books."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bench.harness import Run
from bench.tokenizer.books import OTHERS, tokenizer_json
from outrider.models.bpe import Pipeline
from outrider.models.sentencepiece_bpe import SPACE, SpacePipeline
from outrider.models.tokenizer_json import read_tokenizer_json
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.cut_proofs import UnprovenError, prove

_TRAINED_CHARS: Final = 30_000
"""Of each book."""
_NUM_PIECES: Final = 8000
_UNKNOWN: Final = "<unk>"


def measure(run: Run, books: Mapping[str, str]) -> int:
    """Adds the table; returns how many books differ, which must be none."""
    table = run.table(
        f"How many of {len(books)} whole books have ids that differ from those of the file's own "
        "tokenizer, for each class",
        "tokenizer",
        "class",
        "ids",
        "tokens",
        "differing books",
        "texts are cut",
    )
    texts, num_wrong = list(books.values()), 0
    for name, text in _files(texts):
        own = Tokenizer.from_str(text)
        own.encode_special_tokens = True
        vocabulary = Vocabulary.from_tokenizer_json(text)
        expected = [_ids(own, book) for book in texts]
        wrong = sum(
            ids != vocabulary.encode(book) for ids, book in zip(expected, texts, strict=True)
        )
        kind, cuts = _kind_of(text), _is_cut(vocabulary)
        table.add(name, kind, vocabulary.size, sum(map(len, expected)), wrong, cuts)
        num_wrong += wrong
    return num_wrong


def _files(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in OTHERS:
        yield name, tokenizer_json(name)
    sample = [text[:_TRAINED_CHARS] for text in texts]
    yield "trained: bytes", _byte_level(sample)
    yield "trained: SentencePiece's BPE", _spaces(sample)
    words = _unigram(sample)
    yield "trained: Unigram, by words", words
    yield "trained: Unigram, normalized as T5's", _as_t5(words)


def _ids(own: Tokenizer, text: str) -> list[int]:
    (encoding,) = own.encode_batch_fast([text], add_special_tokens=False)
    return list(encoding.ids)


def _kind_of(text: str) -> str:
    pipeline = read_tokenizer_json(text).pipeline
    names = {Pipeline: "byte-level BPE", SpacePipeline: "SentencePiece BPE"}
    return names.get(type(pipeline), "Unigram")


def _is_cut(vocabulary: Vocabulary) -> str:
    try:
        prove(vocabulary.tokenizer_json)
    except UnprovenError:
        return "no: tokenized whole"
    return "yes"


def _byte_level(sample: Sequence[str]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_PIECES,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
    )
    tokenizer.train_from_iterator(sample, trainer)
    return str(tokenizer.to_str())


def _spaces(sample: Sequence[str]) -> str:
    """Trained by words; it computes over whole texts."""
    tokenizer = Tokenizer(models.BPE(unk_token=_UNKNOWN, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never")
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_PIECES, show_progress=False, special_tokens=[_UNKNOWN]
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    return json.dumps(json.loads(tokenizer.to_str()) | {"pre_tokenizer": None})


def _unigram(sample: Sequence[str]) -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_NUM_PIECES,
        show_progress=False,
        special_tokens=[_UNKNOWN, "</s>"],
        unk_token=_UNKNOWN,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return str(tokenizer.to_str())


def _as_t5(text: str) -> str:
    steps = [
        {"type": "NFKC"},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE},
    ]
    return json.dumps(json.loads(text) | {"normalizer": {"type": "Sequence", "normalizers": steps}})
