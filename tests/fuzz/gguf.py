"""A GGUF file of some hundred bytes with a vocabulary (ggml's docs/gguf.md)."""

from __future__ import annotations

import struct
from typing import Final

_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_VERSION: Final = 3


def small_gguf(*, pieces: bool = False) -> bytes:
    """Five tokens, one merge, no tensors; with `pieces` scores instead, as SentencePiece has."""
    tokens = ["<|im_end|>", "a", "b", "ab", "<unk>"]
    scores = [struct.pack("<f", -float(index)) for index in range(len(tokens))]
    pairs = [
        _pair("general.architecture", _STRING, _string("llama")),
        _pair("tokenizer.ggml.model", _STRING, _string("llama" if pieces else "gpt2")),
        _pair("tokenizer.ggml.pre", _STRING, _string("gpt-2")),
        _pair("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, [_string(t) for t in tokens])),
        _pair(
            "tokenizer.ggml.token_type",
            _ARRAY,
            _array(_INT32, [struct.pack("<i", kind) for kind in (3, 1, 1, 1, 2)]),
        ),
        _pair("tokenizer.ggml.merges", _ARRAY, _array(_STRING, [_string("a b")])),
        _pair("tokenizer.ggml.scores", _ARRAY, _array(_FLOAT32, scores)),
        _pair("tokenizer.ggml.eos_token_id", _UINT32, struct.pack("<I", 0)),
        _pair("tokenizer.chat_template", _STRING, _string("{{ messages[0]['content'] }}")),
    ]
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, 0, len(pairs))
    return head + b"".join(pairs)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value
