"""The default model's vocabulary: ids, digest, pickling, the lossy bytes, threads."""

from __future__ import annotations

import itertools
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.shipped import shipped_table
from outrider.errors import ArtifactCorruptError, ConfigError, InvalidRequestError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, VocabularyFacts, load_vocabulary
from outrider.speculation.shipped import shipped_prior
from tests.models import corpus

pytestmark = pytest.mark.model

DIGEST = "db8d8d938c5272b642c933d9fa79bf1c3313a19217bd01018ff100a3796af495"
CONTROL_IDS = range(17)


def test_the_facts_of_the_default_model(vocabulary: Vocabulary) -> None:
    assert vocabulary.size == 49_152
    # <|im_end|> is the metadata's; <|endoftext|> ends whatever it says.
    assert vocabulary.stop_ids == {0, 2}
    assert [i for i in range(vocabulary.size) if vocabulary.is_special(i)] == list(CONTROL_IDS)
    assert not any(vocabulary.text_bytes(i) for i in CONTROL_IDS)
    assert "<|im_start|>" in vocabulary.chat_template


def test_the_digest_is_pinned_and_the_same_in_every_process(vocabulary: Vocabulary) -> None:
    assert vocabulary.digest.hex() == DIGEST
    program = (
        "from outrider.models.catalog import DEFAULT_MODEL as m\n"
        "from outrider.models.store import ModelStore, default_root\n"
        "from outrider.models.vocabulary import load_vocabulary\n"
        "print(load_vocabulary(m, ModelStore(default_root())).digest.hex())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert printed.stdout.decode().strip() == DIGEST


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", [19556, 28, 905, 17]),
        # White space before a digit stays whole: Digits cuts before the regex looks ahead.
        ("a   1", [81, 333, 33]),
        # The vocabulary has no byte 04: it is dropped before merging, so "!!" is one token.
        ("!\x04!", [10095]),
        ("", []),
    ],
)
def test_known_ids(vocabulary: Vocabulary, text: str, ids: list[int]) -> None:
    assert vocabulary.encode(text) == ids


@pytest.mark.parametrize("byte", [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D])
def test_bytes_without_a_token_are_dropped(vocabulary: Vocabulary, byte: int) -> None:
    assert vocabulary.encode(f"!{chr(byte)}!") == vocabulary.encode("!!")


def test_a_character_that_loses_its_first_byte_keeps_the_rest(vocabulary: Vocabulary) -> None:
    # U+50000 is F1 90 80 80 and the vocabulary lacks F1.
    ids = vocabulary.encode("\U00050000x")
    assert b"".join(map(vocabulary.token_bytes, ids)) == b"\x90\x80\x80x"


def test_what_the_vocabulary_holds_comes_back(vocabulary: Vocabulary) -> None:
    for text in corpus.ORDINARY:
        assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize("text", corpus.SPECIAL)
def test_control_tokens_in_text_stay_text(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    assert not any(map(vocabulary.is_special, ids))
    assert vocabulary.decode(ids) == text


@given(st.lists(st.sampled_from([*"<|>_ie", "im_start", "im_end", "<|", "|>", "\n"]), max_size=9))
def test_no_text_makes_a_control_token(vocabulary: Vocabulary, parts: list[str]) -> None:
    assert not any(map(vocabulary.is_special, vocabulary.encode("".join(parts))))


def test_lone_surrogates_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate at character 2"):
        vocabulary.encode("ab\ud800c")
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        vocabulary.encode_chat([Message("user", "\udfff")])


def test_a_batch_equals_single_calls(vocabulary: Vocabulary) -> None:
    single = [vocabulary.encode(text) for text in corpus.ORDINARY]
    assert vocabulary.encode_batch(corpus.ORDINARY) == single


def test_threads_share_one_vocabulary(vocabulary: Vocabulary) -> None:
    texts = corpus.ORDINARY * 4
    expected = [vocabulary.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(vocabulary.encode, texts)) == expected


def test_pickling_keeps_everything(vocabulary: Vocabulary) -> None:
    again: Vocabulary = pickle.loads(pickle.dumps(vocabulary))
    chat = [Message("user", "a <|im_end|> b")]
    assert again.digest == vocabulary.digest
    assert again.stop_ids == vocabulary.stop_ids
    assert again.encode_chat(chat) == vocabulary.encode_chat(chat)


@pytest.mark.parametrize("token_id", [-1, 49_152])
def test_ids_outside_the_vocabulary_are_refused(vocabulary: Vocabulary, token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        vocabulary.token_bytes(token_id)
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        vocabulary.text_bytes(token_id)
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        vocabulary.decode([token_id])
    assert not vocabulary.is_special(token_id)


def test_a_loaded_vocabulary_equals_the_one_just_built(
    vocabulary: Vocabulary, model_store: ModelStore
) -> None:
    built = Vocabulary.from_gguf(model_store.path(DEFAULT_MODEL.source))
    assert built.digest == vocabulary.digest
    assert built.tokenizer_json == vocabulary.tokenizer_json
    assert load_vocabulary(DEFAULT_MODEL, model_store).digest == built.digest


def test_a_definition_changes_chat_template_and_stop_tokens(
    vocabulary: Vocabulary, model_store: ModelStore
) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    own = replace(DEFAULT_MODEL, name="own", chat_template=template)
    stops = replace(own, stop_tokens=("<|im_start|>", "<repo_name>"))
    folders = [model_store.root / "derived" / DEFAULT_MODEL.sha256]
    folders = [folders[0] / f"vocabulary-v5-{spec.vocabulary_key()}" for spec in (own, stops)]
    try:
        loaded = [load_vocabulary(spec, model_store) for spec in (own, stops)]
        again = [load_vocabulary(spec, model_store) for spec in (own, stops, DEFAULT_MODEL)]
        assert all(folder.is_dir() for folder in folders)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    digests = [it.digest for it in (*loaded, vocabulary)]
    assert len(set(digests)) == 3
    assert [it.digest for it in again] == digests
    start = vocabulary.token_id("<|im_start|>")
    assert loaded[0].encode_chat([Message("user", "Hello")]) == [start, *vocabulary.encode("Hello")]
    assert loaded[0].stop_ids == vocabulary.stop_ids
    assert loaded[1].stop_ids == vocabulary.stop_ids | {start, vocabulary.token_id("<repo_name>")}
    assert all(it.has_ids_of(vocabulary) for it in loaded)
    # So what is shipped for these ids serves all three.
    assert {it.tokens_digest for it in loaded} == {vocabulary.tokens_digest}
    assert shipped_table(loaded[1].tokens_digest) is not None
    assert shipped_prior(loaded[1].tokens_digest) is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stop_tokens": ("<|eot_id|>",)}, "model own: .*'<|eot_id|>' is not in the vocabulary"),
        ({"stop_tokens": ("the",)}, "model own: .*'the' is no control token"),
        ({"chat_template": "{% if %}"}, "model own: .*template is broken"),
    ],
)
def test_what_a_definition_cannot_change(
    model_store: ModelStore, changes: dict[str, Any], says: str
) -> None:
    spec = replace(DEFAULT_MODEL, name="own", **changes)
    with pytest.raises(ConfigError, match=says.replace("|", r"\|")):
        load_vocabulary(spec, model_store)
    folder = model_store.root / "derived" / DEFAULT_MODEL.sha256
    assert not (folder / f"vocabulary-v5-{spec.vocabulary_key()}").exists()


def test_damaged_records_are_refused(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path)
    assert Vocabulary.load(tmp_path).digest == vocabulary.digest
    facts = VocabularyFacts.from_json((tmp_path / "vocabulary.json").read_text())
    with pytest.raises(ArtifactCorruptError, match="49152 ids"):
        Vocabulary(vocabulary.tokenizer_json, replace(facts, size=7))
    for damaged in ("", "[]", "{}", '{"stop_ids": 1}', '{"stop_ids": [], "control_ids": []}'):
        with pytest.raises(ArtifactCorruptError, match="vocabulary record is damaged"):
            VocabularyFacts.from_json(damaged)
    with pytest.raises(ArtifactCorruptError, match="tokenizer record is damaged"):
        Vocabulary("{}", facts)


def test_a_process_that_was_stopped_while_it_rendered_does_not_blame_the_request(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_s = itertools.count(step=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(wall_s)))
    copy = pickle.loads(pickle.dumps(vocabulary))
    messages = [Message("user", str(number)) for number in range(500)]
    assert copy.encode_chat(messages) == vocabulary.encode_chat(messages)


def test_encoding_lets_other_threads_run(vocabulary: Vocabulary) -> None:
    """An event loop beside it goes on. With the GIL held, it would get next to none of the CPU."""
    text = "The outrider goes ahead. " * 40_000
    begun, done = threading.Event(), threading.Event()

    def encode() -> float:
        begun.set()
        start = time.thread_time()
        vocabulary.encode(text)
        done.set()
        return time.thread_time() - start

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(encode)
        begun.wait()
        start = time.thread_time()
        while not done.is_set():
            pass
        beside_s = time.thread_time() - start
    assert beside_s > result.result() / 5
