"""Small tokenizer.json files, and an archive of a model's folder around one."""

from __future__ import annotations

import base64
import io
import json
import tarfile

from outrider.models.bpe import VocabularyDefinition, build_tokenizer
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.sentencepiece_bpe import SpacePipeline, SpacePrefix


def small_tokenizer_jsons() -> list[bytes]:
    """One of bytes, one with a space as a character, two of scores."""
    tokens = ["<s>", "a", "b", "ab", "<t>"]
    spaces = SpacePipeline(SpacePrefix.EACH, True, "<s>", byte_fallback=False)
    llama3 = pre_tokenizer_of("llama3").pipeline
    definitions = [
        VocabularyDefinition(tokens, ["a b"], llama3, [0], [4], [0], "", "", ""),
        VocabularyDefinition(tokens, ["a b"], spaces, [0], [], [0], "", "", ""),
    ]
    built = [build_tokenizer(each).to_str().encode() for each in definitions]
    return [*built, _unigram({"type": "NFKC"}), _unigram(_table())]


def _table() -> dict[str, str]:
    """A normalizer with a table that replaces nothing."""
    trie = bytes(4 * 256)
    data = len(trie).to_bytes(4, "little") + trie + b"x\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def _unigram(normalizer: dict[str, str]) -> bytes:
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    replace = {"type": "Replace", "pattern": {"String": "b b"}, "content": "ab"}
    vocabulary = [["<s>", 0.0], ["a", -1.0], ["b", -2.0], ["ab", -2.5], ["\u2581", -3]]
    spec = {
        "added_tokens": [{"id": 5, "content": "<t>", "special": True, "normalized": False}],
        "normalizer": {"type": "Sequence", "normalizers": [normalizer, replace]},
        "pre_tokenizer": spaces | {"split": True},
        "decoder": spaces | {"split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False},
    }
    return json.dumps(spec).encode()


def small_archive() -> bytes:
    """Of a folder without a real graph."""
    config = {"vocab_size": 5, "max_position_embeddings": 9, "eos_token_id": 0}
    members = {
        "config.json": json.dumps(config).encode(),
        "openvino_model.bin": b"",
        "openvino_model.xml": b"<net/>",
        "tokenizer.json": small_tokenizer_jsons()[0],
        "tokenizer_config.json": b'{"bos_token": "<s>", "chat_template": "t"}',
    }
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()
