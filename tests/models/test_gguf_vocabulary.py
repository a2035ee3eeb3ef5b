"""Reading a vocabulary from GGUF metadata: small files made here, whole and broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.gguf_vocabulary import read_definition
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary
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
    more = {"bos": 1, "eos": 4, "add_bos": None, "add_eos": None}
    parts = texts | lists | more | {"more": None} | changes
    writer = GGUFWriter(path, "llama")
    for name, add in (
        ("model", writer.add_tokenizer_model),
        ("pre", writer.add_tokenizer_pre),
        ("tokens", writer.add_token_list),
        ("types", writer.add_token_types),
        ("merges", writer.add_token_merges),
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("add_bos", writer.add_add_bos_token),
        ("add_eos", writer.add_add_eos_token),
        ("template", writer.add_chat_template),
        ("more", lambda add: add(writer)),
    ):
        if parts[name] is not None:
            add(parts[name])
    write_out(writer)
    return path


def test_a_whole_vocabulary(tmp_path: Path) -> None:
    definition = read_definition(write(tmp_path / "m.gguf"))
    assert list(definition.tokens) == TOKENS
    assert list(definition.merges) == ["a b"]
    assert definition.pipeline == pre_tokenizer_of("gpt-2").pipeline
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


def test_a_file_without_a_pre_tokenizer_has_the_default_one(tmp_path: Path) -> None:
    definition = read_definition(write(tmp_path / "m.gguf", pre=None))
    assert definition.pipeline == pre_tokenizer_of("default").pipeline


@pytest.mark.parametrize(
    ("changes", "begin", "end"),
    [
        ({}, "", ""),
        ({"pre": "llama-bpe"}, "<|begin|>", ""),
        ({"pre": "tekken"}, "<|begin|>", ""),
        ({"pre": "llama-bpe", "add_bos": False}, "", ""),
        ({"pre": "llama-bpe", "bos": None}, "", ""),
        ({"pre": "llama-bpe", "bos": 3}, "", ""),
        ({"add_bos": True}, "<|begin|>", ""),
        ({"add_bos": True, "add_eos": True, "eos": 2}, "<|begin|>", "<|eot_id|>"),
    ],
    ids=str,
)
def test_prompts_that_are_no_chats_begin_and_end_as_the_file_says(
    tmp_path: Path, changes: dict[str, Any], begin: str, end: str
) -> None:
    vocabulary = Vocabulary.from_gguf(write(tmp_path / "m.gguf", **changes, template=""))

    def shown(text: str, *, is_prompt: bool = True) -> str:
        return "".join(it.text for it in vocabulary.raw_segments(text, is_prompt=is_prompt))

    assert shown("ab") == f"{begin}ab{end}"
    assert shown("") == f"{begin}{end}"
    assert shown(f"{begin}ab{end}") == f"{begin}ab{end}"
    assert shown("ab", is_prompt=False) == "ab"


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("suppress_tokens", [3], True),
        ("normalizer.lowercase", True, True),
        ("a_field_of_next_year", "x", True),
        ("normalizer.lowercase", False, False),
        ("suppress_tokens", [], False),
        ("fim_pre_token_id", 3, False),
        ("token_type_count", 2, False),
    ],
)
def test_a_field_that_may_change_ids_and_is_not_known_is_refused_by_name(
    tmp_path: Path, name: str, value: Any, is_refused: bool
) -> None:
    def add(writer: GGUFWriter) -> None:
        key = f"tokenizer.ggml.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case list():
                writer.add_array(key, value)
            case _:
                writer.add_string(key, value)

    path = write(tmp_path / "m.gguf", more=add)
    if not is_refused:
        assert read_definition(path).control_ids == [0, 1, 2]
        return
    with pytest.raises(ConfigError, match=rf"the field tokenizer\.ggml\.{name}, and what"):
        read_definition(path)


def test_a_begin_token_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorruptError, match="bos_token, and 'a' is no control token"):
        read_definition(write(tmp_path / "m.gguf", bos=3, add_bos=True))


@pytest.mark.parametrize("changes", [{"model": "gemma4", "pre": None}, {"pre": "gemma4"}])
def test_merges_of_pieces_with_spaces(tmp_path: Path, changes: dict[str, Any]) -> None:
    """As Gemma 4 has them: no scores, and spaces as U+2581."""
    tokens = ["<unk>", "<bos>", "\u2581", "a", "\u2581a", *(f"<0x{n:02X}>" for n in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, *[TokenType.NORMAL] * 3]
    parts = {
        "tokens": tokens,
        "types": types + [TokenType.BYTE] * 256,
        "merges": ["\u2581 a"],
        "eos": None,
    }
    vocabulary = Vocabulary.from_gguf(write(tmp_path / "m.gguf", **parts, **changes))
    assert vocabulary.encode("a a  a\n") == [3, 4, 2, 4, 5 + 0x0A]
    assert vocabulary.decode([3, 4, 2, 4, 5 + 0x0A]) == "a a  a\n"


@pytest.mark.parametrize("field", ["tokens", "types", "merges", "model"])
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
