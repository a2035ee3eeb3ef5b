"""A checkpoint's sizes are its own, and its ids are the served vocabulary's or it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.engines.turn.checkpoint import Checkpoint, check_vocabulary, read_checkpoint
from outrider.engines.turn.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.turn.vllm.config import VllmOptions
from outrider.errors import ConfigError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.pre_tokenizers import pre_tokenizer_of
from outrider.models.vocabulary import Vocabulary
from services.inference import model
from services.inference.config import InferenceConfig
from tests.engines.turn.checkpoint_files import write_checkpoint
from tests.models.sentencepieces import trained, write_gguf

SETTING = "trtllm.model_dir"
TOKENS = ["<|end|>", *"abcdefgh", "ab", "Ġa"]


def vocabulary(tokens: list[str]) -> Vocabulary:
    merges = [f"{text[0]} {text[1]}" for text in tokens if len(text) == 2]
    return Vocabulary.from_definition(
        VocabularyDefinition(
            tokens=tokens,
            merges=[merge for merge in merges if "Ġ" not in merge],
            pipeline=pre_tokenizer_of("gpt-2").pipeline,
            control_ids=[0],
            user_defined_ids=[],
            stop_ids=[0],
            bos_token="",
            eos_token="<|end|>",
            chat_template="",
        )
    )


SERVED = vocabulary(TOKENS)


def check(folder: Path | None) -> None:
    check_vocabulary(folder, SERVED, SETTING)


def test_sizes_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    assert read_checkpoint(write_checkpoint(tmp_path), SETTING) == Checkpoint(
        128_256, 128_256, 8192, 131_072
    )
    assert (
        read_checkpoint(write_checkpoint(tmp_path, head_dim=64), SETTING).kv_token_bytes == 65_536
    )
    alone = write_checkpoint(tmp_path, num_key_value_heads=None)
    assert read_checkpoint(alone, SETTING).kv_token_bytes == 4 * 131_072
    latent = write_checkpoint(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64)
    assert read_checkpoint(latent, SETTING).kv_token_bytes == 32 * 576 * 2


def test_a_decoder_that_also_reads_pictures_has_a_table_of_its_own(tmp_path: Path) -> None:
    text = json.loads((write_checkpoint(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "vision_config": {}}))
    assert read_checkpoint(tmp_path, SETTING) == Checkpoint(128_256, 128_256, 8192, 131_072)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "{", "[]", "[" * 100_000, '{"vocab_size": 7}', '{"a": 1, "a": 2}'),
        '{"build_config": {}, "pretrained_config": {}}',
    ],
    ids=lambda text: str(text)[:20],
)
def test_an_unusable_checkpoint_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"no usable config\.json"):
        read_checkpoint(tmp_path, SETTING)
    with pytest.raises(ConfigError, match=r"trtllm\.model_dir is not set"):
        read_checkpoint(None, SETTING)


@pytest.mark.parametrize(
    "facts",
    [{"vocab_size": 0}, {"num_attention_heads": 0}, {"num_hidden_layers": -1}, {"vocab_size": "x"}],
    ids=str,
)
def test_absurd_sizes_are_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no usable config\.json"):
        read_checkpoint(write_checkpoint(tmp_path, **facts), SETTING)


@pytest.mark.parametrize("num_padding", [0, 1, 53])
def test_a_checkpoint_with_the_served_ids_passes_with_any_padding(
    tmp_path: Path, num_padding: int
) -> None:
    size = len(TOKENS) + num_padding
    folder = write_checkpoint(tmp_path, SERVED.tokenizer_json, vocab_size=size)
    check(folder)
    read = read_checkpoint(folder, SETTING)
    assert (read.vocabulary_size, read.num_tokens) == (size, len(TOKENS))


def test_a_vocabulary_that_names_the_padding_passes(tmp_path: Path) -> None:
    """Some files list padding as tokens; the checkpoint's tokenizer knows better."""
    tokenizer = vocabulary(TOKENS[:-1]).tokenizer_json
    folder = write_checkpoint(tmp_path, tokenizer, vocab_size=len(TOKENS))
    check(folder)
    assert read_checkpoint(folder, SETTING).num_tokens == len(TOKENS) - 1


def test_without_its_tokenizer_only_the_same_size_passes(tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path, vocab_size=len(TOKENS)))
    for size in (len(TOKENS) - 1, len(TOKENS) + 1):
        with pytest.raises(ConfigError, match=rf"scores {size} ids.* 11: set .*tokenizer\.json"):
            check(write_checkpoint(tmp_path, vocab_size=size))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([*TOKENS, "bc"], r"has id 11 \('bc'\), the vocabulary that is served ends at 10"),
        ([*TOKENS[:-1], "Ġb"], r"id 10 is b' b' in the tokenizer .* b' a' in the vocabulary"),
        ([TOKENS[0], "b", "a", *TOKENS[3:]], r"id 1 is b'b'"),
    ],
)
def test_another_models_tokenizer_is_refused(tmp_path: Path, tokens: list[str], words: str) -> None:
    other = vocabulary(tokens).tokenizer_json
    with pytest.raises(ConfigError, match=words):
        check(write_checkpoint(tmp_path, other, vocab_size=64))


def test_a_checkpoint_with_sentencepieces_passes_and_another_is_refused(tmp_path: Path) -> None:
    """Spaces are U+2581 and bytes are <0x..> there, not GPT-2's alphabet."""
    served = Vocabulary.from_gguf(write_gguf(tmp_path / "m.gguf", trained(), prefix=True))
    folder = write_checkpoint(tmp_path, served.tokenizer_json, vocab_size=served.size + 4)
    check_vocabulary(folder, served, SETTING)
    spec = json.loads(served.tokenizer_json)
    control = {token["id"] for token in spec["added_tokens"]}
    ids = spec["model"]["vocab"]
    one, two = [text for text, i in ids.items() if len(text) == 1 and i not in control][:2]
    ids[one], ids[two] = ids[two], ids[one]
    write_checkpoint(tmp_path, json.dumps(spec), vocab_size=served.size + 4)
    with pytest.raises(ConfigError, match=r"id \d+ is .* in the tokenizer .* in the vocabulary"):
        check_vocabulary(folder, served, SETTING)


def test_fewer_scored_ids_than_served_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scores 10 ids, the vocabulary that is served has 11"):
        check(write_checkpoint(tmp_path, SERVED.tokenizer_json, vocab_size=10))


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        check(write_checkpoint(tmp_path, "{", vocab_size=64))


@pytest.mark.parametrize("engine", ["tensorrt-llm", "vllm"])
async def test_a_replica_refuses_another_models_checkpoint_before_it_loads_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary of `model` alone does not decide: Llama's checkpoint has another."""
    monkeypatch.setattr(model, "load_vocabulary", lambda *_: SERVED)
    folder = write_checkpoint(tmp_path)
    config = InferenceConfig(
        engine=engine,
        trtllm=TensorRtLlmOptions(model_dir=folder),
        vllm=VllmOptions(model_dir=folder),
    )
    with pytest.raises(ConfigError, match="scores 128256 ids, the vocabulary that is served has"):
        await model.load_turn_model(config)
