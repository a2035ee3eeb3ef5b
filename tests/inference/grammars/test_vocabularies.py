"""JSON by a schema in the ids of every kind of vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from outrider.models.tokenizer_json import ChatParts
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.grammar import Grammar, json_schema
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable
from tests.models import sentencepieces, unigrams
from tests.tokenization.vocabularies import tokenizer_json

ENDS = {
    "gpt2": "<|endoftext|>",
    "llama3": "<|end_of_text|>",
    "qwen2_5": "<|endoftext|>",
    "gemma": "<eos>",
}
"""Of tokenizers that other packages bring: what ends a reply."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "größe": {"type": "integer", "minimum": -40, "maximum": 1500},
        "kind": {"enum": ["river", "lake", "日本"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "at": {"type": "string", "format": "date"},
        "inner": {"type": ["object", "null"], "properties": {"x": {"const": 1.5}}},
    },
    "required": ["name", "größe", "kind", "tags", "at"],
    "additionalProperties": False,
}
GRAMMAR: Grammar = json_schema(SCHEMA)
TEXTS = [
    "name",
    '{"name": "',
    "größe",
    " two words",
    "  two spaces",
    "日本",
    "\n",
    'a"b\\',
    "a\u0301",
]


def sentencepiece(folder: Path, *, prefix: bool, **kind: object) -> Vocabulary:
    model = sentencepieces.trained(prefix=prefix, **kind)
    path = sentencepieces.write_gguf(folder / "m.gguf", model, prefix=prefix)
    return Vocabulary.from_gguf(path)


@pytest.fixture(scope="module", params=["default", "spaced", "plain", "words", "unigram", *ENDS])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("vocabulary")
    match request.param:
        case "default":
            found: Vocabulary = request.getfixturevalue("vocabulary")
            return found
        case "spaced":
            return sentencepiece(folder, prefix=True)
        case "plain":
            return sentencepiece(folder, prefix=False)
        case "words":
            return sentencepiece(folder, prefix=True, crosses_words=False)
        case "unigram":
            parts = ChatParts(eos_token="</s>")
            return Vocabulary.from_tokenizer_json(unigrams.with_bytes(), parts)
        case name:
            parts = ChatParts(eos_token=ENDS[name])
            return Vocabulary.from_tokenizer_json(tokenizer_json(name), parts)


@pytest.fixture(scope="module")
def table(words: Vocabulary) -> TokenTable:
    return TokenTable(words)


def test_any_way_through_the_grammar_is_valid_json(words: Vocabulary, table: TokenTable) -> None:
    compiled = compile_grammar(table, GRAMMAR)
    for seed in range(2):
        chance = random.Random(seed)
        matcher, ids = compiled.constraint(), list[int]()
        while not ids or ids[-1] not in words.stop_ids:
            forced = matcher.forced(8)
            matcher.prepare(forced if seed % 2 else (*forced, chance.randrange(words.size)))
            choices = np.flatnonzero(matcher.allowed()).tolist()
            assert not forced or forced[0] in choices
            ids.append(chance.choice(choices))
            matcher.advance(ids[-1])
        jsonschema.validate(json.loads(words.decode(ids)), SCHEMA)


def test_every_id_is_allowed_where_its_bytes_are(words: Vocabulary, table: TokenTable) -> None:
    """Within a string: masks go down a tree of all tokens, validation reads one token's bytes."""
    matcher = compile_grammar(table, json_schema({"type": "string"})).constraint()
    opening = [i for i in range(words.size) if words.token_bytes(i).strip(b" ") == b'"']
    matcher.advance(next(i for i in opening if matcher.allowed()[i]))
    mask = matcher.allowed()
    valid = [token for token in range(words.size) if matcher.num_valid([token])]
    assert np.flatnonzero(mask).tolist() == valid
    assert len(valid) > words.size // 3


def test_forced_text_is_the_vocabularys_own_way_to_write_it(
    words: Vocabulary, table: TokenTable
) -> None:
    for text in TEXTS:
        ids = table.tokenizer.tokenize_str(text)
        said = b"".join(words.token_bytes(i) for i in ids)
        assert said == text.encode()
        if not words.strips_space and words.decode(words.encode(text)) == text:
            assert ids == words.encode(text)
