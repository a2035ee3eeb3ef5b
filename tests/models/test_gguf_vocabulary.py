"""Reading a vocabulary from GGUF metadata: small files made here, whole and broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.bpe import pipeline_of
from outrider.models.gguf_vocabulary import read_definition
from tests.models.gguf_files import write_out

TOKENS = ["<unk>", "<|begin|>", "<|eot_id|>", "a", "b", "ab", "<tool>"]
TYPES = [
    TokenType.UNKNOWN,
    TokenType.CONTROL,
    TokenType.CONTROL,
    *[TokenType.NORMAL] * 3,
    TokenType.USER_DEFINED,
]


def write(path: Path, **changes: Any) -> Path:
    """A GGUF with a small vocabulary; a change of None leaves the field out."""
    texts: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "template": "T"}
    lists = {"tokens": TOKENS, "types": TYPES, "merges": ["a b"]}
    parts = texts | lists | {"bos": 1, "eos": 4} | changes
    writer = GGUFWriter(path, "llama")
    for name, add in (
        ("model", writer.add_tokenizer_model),
        ("pre", writer.add_tokenizer_pre),
        ("tokens", writer.add_token_list),
        ("types", writer.add_token_types),
        ("merges", writer.add_token_merges),
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("template", writer.add_chat_template),
    ):
        if parts[name] is not None:
            add(parts[name])
    write_out(writer)
    return path


def test_a_whole_vocabulary(tmp_path: Path) -> None:
    definition = read_definition(write(tmp_path / "m.gguf"))
    assert list(definition.tokens) == TOKENS
    assert list(definition.merges) == ["a b"]
    assert definition.pipeline == pipeline_of("gpt-2")
    assert definition.control_ids == [0, 1, 2]
    assert definition.user_defined_ids == [6]
    # The metadata's end token, and the control token whose name says that a turn ends.
    assert definition.stop_ids == [2, 4]
    assert (definition.bos_token, definition.eos_token) == ("<|begin|>", "b")
    assert definition.chat_template == "T"


def test_what_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", bos=None, eos=None, template=None)
    definition = read_definition(path)
    assert (definition.bos_token, definition.eos_token, definition.chat_template) == ("", "", "")
    assert definition.stop_ids == [2]


@pytest.mark.parametrize("field", ["tokens", "types", "merges", "model", "pre"])
def test_what_must_not_be_missing(tmp_path: Path, field: str) -> None:
    with pytest.raises(ArtifactCorruptError, match=r"m\.gguf lacks the field tokenizer\.ggml"):
        read_definition(write(tmp_path / "m.gguf", **{field: None}))


def test_other_kinds_of_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unigram tokenizer .'t5'.*with its tokenizer"):
        read_definition(write(tmp_path / "m.gguf", model="t5"))


@pytest.mark.parametrize(
    "changes", [{"types": TYPES[:-1]}, {"eos": 99}, {"tokens": ["a"] * 7}, {"merges": ["ab"]}]
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ArtifactCorruptError):
        read_definition(write(tmp_path / "m.gguf", **changes))
