"""Vocabularies from tokenizer.json: the ids of the file's own tokenizer, one digest for what is the
same, and a refusal that names the part for all else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.bpe import build_tokenizer
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.sentencepiece_bpe import SpacePrefix
from outrider.models.tokenizer_json import ChatParts, read_tokenizer_json
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import corpus as backend_corpus
from outrider.tokenization.cut_proofs import UnprovenError, prove
from tests.models import corpus
from tests.models.sentencepieces import USER_DEFINED, reordered, trained, write_gguf
from tests.models.test_bpe import definition as byte_definition
from tests.tokenization.vocabularies import OTHERS, tokenizer_json

NAMES = ("gpt-2", "smollm", "llama3", "qwen2")
MERGES = ("t h", "th e", "\u0120 the", "\u0120 \u0120", "l l", "a a", "a aa")


def small(name: str) -> str:
    """A byte-level tokenizer of that pipeline as a file."""
    built = [merge.replace(" ", "") for merge in MERGES]
    return build_tokenizer(byte_definition(name, *built, merges=MERGES)).to_str()


def chat() -> ChatParts:
    return ChatParts("{{ messages[0]['content'] }}", "<s>", "<s>", stop_ids=(256,))


@pytest.mark.parametrize("name", NAMES)
def test_byte_level_files_have_their_own_tokenizers_ids(name: str) -> None:
    text = small(name)
    own = Tokenizer.from_str(text)
    own.encode_special_tokens = True
    vocabulary = Vocabulary.from_tokenizer_json(text, chat())
    for sample in [*corpus.ORDINARY, *corpus.mixtures(300)]:
        assert vocabulary.encode(sample) == own.encode(sample, add_special_tokens=False).ids
    assert read_tokenizer_json(text).pipeline == pre_tokenizer_of(name).pipeline
    assert vocabulary.encode("<tool>") == [len(vocabulary.facts.to_json()) and vocabulary.size - 1]


@pytest.mark.parametrize("name", NAMES)
def test_the_digest_is_over_what_a_file_means(name: str) -> None:
    text = small(name)
    digest = Vocabulary.from_tokenizer_json(text, chat()).digest
    assert Vocabulary.from_tokenizer_json(reordered(text), chat()).digest == digest
    built = [merge.replace(" ", "") for merge in MERGES]
    own = byte_definition(name, *built, merges=MERGES)
    size = len(own.tokens)
    same = replace(
        own,
        stop_ids=(256, size - 2),
        eos_token="<s>",
        chat_template=chat().template,
    )
    assert Vocabulary.from_definition(same).digest == digest
    changed = json.loads(text)
    changed["model"]["merges"].reverse()
    assert Vocabulary.from_tokenizer_json(json.dumps(changed), chat()).digest != digest


@pytest.mark.parametrize("name", OTHERS)
def test_published_files_have_their_own_tokenizers_ids(name: str) -> None:
    text = tokenizer_json(name)
    own = Tokenizer.from_str(text)
    own.encode_special_tokens = True
    vocabulary = Vocabulary.from_tokenizer_json(text)
    texts = [*corpus.ORDINARY, *corpus.mixtures(200), *backend_corpus.LANGUAGES]
    texts += backend_corpus.ATOMS
    expected = own.encode_batch(texts, add_special_tokens=False)
    assert vocabulary.encode_batch(texts) == [encoding.ids for encoding in expected]
    for ids in (encoding.ids for encoding in expected):
        assert vocabulary.decode(ids) == own.decode(ids)


def around(*before: str) -> dict[str, Any]:
    special: list[dict[str, Any]] = [{"SpecialToken": {"id": it, "type_id": 0}} for it in before]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [*special, text, end]}
    return {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}


@pytest.mark.parametrize(
    ("processor", "said", "begins"),
    [
        (None, None, False),
        (around("<s>"), None, True),
        (around(), None, False),
        (around("<s>", "<tool>"), None, False),
        (around("<tool>"), None, False),
        (around("<s>"), False, False),
        (around(), True, True),
    ],
)
def test_prompts_that_are_no_chats_begin_as_the_files_say(
    processor: dict[str, Any] | None, said: bool | None, begins: bool
) -> None:
    text = json.dumps(json.loads(small("gpt-2")) | {"post_processor": processor})
    definition = read_tokenizer_json(text, ChatParts(bos_token="<s>", adds_bos=said))
    assert definition.adds_bos is begins
    assert not definition.adds_eos
    assert read_tokenizer_json(text, ChatParts("", "", "<s>", adds_eos=True)).adds_eos


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spaces")


@pytest.mark.parametrize("prefix", [True, False])
def test_files_with_spaces_as_characters_agree_with_gguf(prefix: bool, folder: Path) -> None:
    user_defined = () if prefix else USER_DEFINED
    model = trained(prefix=prefix, user_defined=user_defined)
    of_gguf = Vocabulary.from_gguf(write_gguf(folder / f"{prefix}.gguf", model, prefix=prefix))
    facts = of_gguf.facts
    parts = ChatParts(
        facts.chat_template,
        facts.bos_token,
        facts.eos_token,
        adds_bos=facts.adds_bos,
        stop_ids=facts.stop_ids,
    )
    of_json = Vocabulary.from_tokenizer_json(reordered(of_gguf.tokenizer_json), parts)
    assert of_json.digest == of_gguf.digest
    for text in corpus.ORDINARY:
        if "\0" not in text:
            assert of_json.encode(text) == model.encode(text)
    with pytest.raises(UnprovenError):
        prove(of_json.tokenizer_json)


METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": False,
}


@given(st.text(alphabet=" ab\u2581\n", max_size=12))
def test_a_metaspace_puts_a_space_where_there_is_none(text: str) -> None:
    model = trained()
    spec = spaces()
    spec |= {"normalizer": None, "pre_tokenizer": METASPACE}
    own = Tokenizer.from_str(json.dumps(spec))
    vocabulary = Vocabulary.from_tokenizer_json(json.dumps(spec))
    assert vocabulary.encode(text) == own.encode(text, add_special_tokens=False).ids
    if not text.startswith((" ", "\u2581")):
        assert vocabulary.encode(text) == model.encode(text)


SPACES: dict[str, Any] = {}


def spaces() -> dict[str, Any]:
    """The small Llama-like tokenizer as a file."""
    if not SPACES:
        import tempfile

        with tempfile.TemporaryDirectory() as scratch:
            path = write_gguf(Path(scratch) / "m.gguf", trained(), prefix=True)
            SPACES.update(json.loads(Vocabulary.from_gguf(path).tokenizer_json))
    copied: dict[str, Any] = json.loads(json.dumps(SPACES))
    return copied


def bytes_() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(small("llama3"))
    return found


def changed(spec: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *way, last = path.split("/")
    at: Any = spec
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return spec


PREPENDED_FIRST = METASPACE | {"prepend_scheme": "first"}


def _named(value: object) -> str:
    """A case's name, the same in every process."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    ("make", "path", "value", "complaint"),
    [
        (bytes_, "model/type", "WordPiece", "its model is 'WordPiece', neither BPE nor Unigram"),
        (bytes_, "model/dropout", 0.1, "its model has dropout"),
        (bytes_, "normalizer", {"type": "NFKC"}, r"its normalizer is \['NFKC'\]"),
        (bytes_, "normalizer", {"type": "Lowercase"}, "its normalizer is"),
        (bytes_, "pre_tokenizer", {"type": "Whitespace"}, "ends in 'Whitespace'"),
        (bytes_, "pre_tokenizer/pretokenizers/0/behavior", "Removed", "has 'Split'"),
        (bytes_, "pre_tokenizer/pretokenizers/1/add_prefix_space", True, "adds a space"),
        (bytes_, "decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}, "normalizer"),
        (bytes_, "added_tokens/0/rstrip", True, "its token '<s>' has rstrip"),
        (bytes_, "added_tokens/1/single_word", True, "has single_word"),
        (bytes_, "added_tokens/1/id", 999, "its id 26[0-9] has no token"),
        (spaces, "model/ignore_merges", True, "it ignores merges"),
        (spaces, "model/byte_fallback", False, "256 tokens are named as bytes"),
        (spaces, "normalizer", {"type": "NFKC"}, "its normalizer is"),
        (spaces, "pre_tokenizer", PREPENDED_FIRST, "its pre-tokenizer is"),
        (spaces, "decoder", {"type": "Fuse"}, "its decoder is"),
        (spaces, "added_tokens/1/lstrip", True, "has lstrip"),
    ],
    ids=_named,
)
def test_what_cannot_be_exact_is_refused_by_name(
    make: Callable[[], dict[str, Any]], path: str, value: object, complaint: str
) -> None:
    text = json.dumps(changed(make(), path, value))
    with pytest.raises(ConfigError, match=complaint) as refused:
        Vocabulary.from_tokenizer_json(text)
    assert "can be served are BPE over bytes" in refused.value.message


def test_a_metaspace_of_the_first_text_alone_is_refused() -> None:
    spec = spaces() | {"normalizer": None, "pre_tokenizer": PREPENDED_FIRST}
    with pytest.raises(ConfigError, match="prepend_scheme 'first'"):
        Vocabulary.from_tokenizer_json(json.dumps(spec))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"model": {"type": "BPE"}}', "[" * 100_000, '{"model": 3}', "null"],
)
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises((ArtifactCorruptError, ConfigError)):
        Vocabulary.from_tokenizer_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"merges": [["t", "nowhere"]]},
        {"merges": ["t"]},
        {"merges": [["<", "s>"]]},
        {"vocab": {"a": 0, "b": 0}},
    ],
    ids=str,
)
def test_files_that_contradict_themselves_are_refused(change: dict[str, Any]) -> None:
    spec = bytes_()
    spec["model"] |= change
    with pytest.raises((ArtifactCorruptError, ConfigError)):
        Vocabulary.from_tokenizer_json(json.dumps(spec))


def test_ids_of_the_model_without_a_token_are_filled_up() -> None:
    text = small("qwen2")
    size = Vocabulary.from_tokenizer_json(text).size
    padded = Vocabulary.from_tokenizer_json(text, size=size + 3)
    assert padded.size == size + 3
    assert padded.encode(f"[PAD{size}]") == Vocabulary.from_tokenizer_json(text).encode(
        f"[PAD{size}]"
    )
    with pytest.raises(ConfigError, match=f"it has {size} ids, the model {size - 1}"):
        Vocabulary.from_tokenizer_json(text, size=size - 1)


def test_control_tokens_behind_the_models_last_id_are_left_out() -> None:
    text = small("qwen2")
    plain = Vocabulary.from_tokenizer_json(text)
    spec = json.loads(text)
    token = {**spec["added_tokens"][0], "content": "<image_soft_token>", "id": plain.size}
    spec["added_tokens"].append({**token, "special": True})
    more = json.dumps(spec)
    assert Vocabulary.from_tokenizer_json(more, size=plain.size).digest == plain.digest
    assert Vocabulary.from_tokenizer_json(more).size == plain.size + 1


def test_tokens_that_look_like_control_tokens_are_some() -> None:
    spec = bytes_()
    token = dict(spec["added_tokens"][1])
    size = max(each["id"] for each in spec["added_tokens"]) + 1
    spec["added_tokens"].append(token | {"id": size, "content": "<|fim|>", "special": False})
    vocabulary = Vocabulary.from_tokenizer_json(json.dumps(spec))
    assert vocabulary.is_special(size)
    assert size not in vocabulary.encode("<|fim|>")


def test_the_prefix_is_read() -> None:
    definition = read_tokenizer_json(json.dumps(spaces()))
    assert definition.pipeline.prefix is SpacePrefix.EACH  # type: ignore[union-attr]
    assert definition.pipeline.strips_space  # type: ignore[union-attr]
