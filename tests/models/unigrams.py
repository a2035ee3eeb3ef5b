"""Small Unigram tokenizers, trained here, as tokenizer.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.models import corpus

_CORPUS = [*corpus.LANGUAGES, *corpus.CODE, *corpus.EMOJI, "  a    b   ", "aaaa aaa aa", "ababab"]
CONTROL = ("<unk>", "<s>", "</s>")
METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": True,
}
T5_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "NFKC"},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
    ],
}


@cache
def trained() -> str:
    """With a Metaspace that splits, no normalizer, and no bytes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=list(CONTROL), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["decoder"] = METASPACE
    return json.dumps(spec)


def with_bytes() -> str:
    """Spaces written by the normalizer, pieces of several words, characters without a piece as
    bytes, and a text found as it is typed behind the pieces."""
    spec = json.loads(trained())
    pieces = spec["model"]["vocab"]
    least = min(score for _, score in pieces)
    known = {text for text, _ in pieces}
    names = (f"<0x{byte:02X}>" for byte in range(256))
    pieces += [[name, least - 1] for name in names if name not in known]
    spec["model"]["byte_fallback"] = True
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spec["pre_tokenizer"] = None
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    return json.dumps(with_added(spec, "<table>", special=False))


def with_added(spec: dict[str, Any], text: str, *, special: bool) -> dict[str, Any]:
    """The same with one token more."""
    last = max([len(spec["model"]["vocab"]) - 1, *(t["id"] for t in spec["added_tokens"])])
    token = {
        **{"id": last + 1, "content": text, "special": special, "normalized": False},
        **{"lstrip": False, "rstrip": False, "single_word": False},
    }
    return spec | {"added_tokens": [*spec["added_tokens"], token]}


def changed(text: str, **parts: Any) -> str:
    """With other parts."""
    return json.dumps(json.loads(text) | parts)
