"""Normalizer and pre-tokenizer by llama.cpp's name, and the Hugging Face tokenizer they make.

Only pipelines whose parts are known exactly are here: they equal the `tokenizer.json` of the
models they come from. Any other name is refused, since a nearly right tokenizer silently gives
the model a text it was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.errors import ConfigError
from outrider.models.tokenization.definition import VocabularyDefinition

GPT2_REGEX: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K_REGEX: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What happens to a text before BPE."""

    regex: str
    """Oniguruma pattern whose matches BPE sees one by one."""
    single_digits: bool = False
    """Numeric characters are cut out one by one before the regex sees the rest."""
    nfc: bool = False
    """Unicode normalization form C comes first."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is not built by merges."""


_LLAMA3: Final = Pipeline(_CL100K_REGEX.replace("DIGITS", r"\p{N}{1,3}"), ignore_merges=True)
_PIPELINES: Final = {
    "gpt-2": Pipeline(GPT2_REGEX),
    "smollm": Pipeline(GPT2_REGEX, single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": Pipeline(_CL100K_REGEX.replace("DIGITS", r"\p{N}"), nfc=True),
}


def pipeline_of(pre_tokenizer: str) -> Pipeline:
    """The pipeline of that name. Raises ConfigError for one that cannot be built exactly."""
    try:
        return _PIPELINES[pre_tokenizer]
    except KeyError:
        raise ConfigError(
            f"the pre-tokenizer {pre_tokenizer!r} cannot be built exactly; choose a model with "
            f"one of {', '.join(sorted(_PIPELINES))}"
        ) from None


def build_tokenizer(definition: VocabularyDefinition) -> Tokenizer:
    """The tokenizer of `definition`, with control tokens recognised in text.

    Bytes without a token of their own are dropped before merging, as in the Hugging Face
    tokenizer (unk_token null) and in llama.cpp. Raises ConfigError.
    """
    pipeline = pipeline_of(definition.pre_tokenizer)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(definition.tokens)},
            merges=[_pair(merge) for merge in definition.merges],
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=pipeline.ignore_merges,
        )
    )
    if pipeline.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(pipeline))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(definition, definition.control_ids, special=True))
    tokenizer.add_tokens(_added(definition, definition.user_defined_ids, special=False))
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _pre_tokenizers(pipeline: Pipeline) -> list[pre_tokenizers.PreTokenizer]:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pipeline.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    # ByteLevel has GPT-2's pattern built in; any other comes as a step before it.
    built_in = pipeline.regex == GPT2_REGEX
    if not built_in:
        steps.append(pre_tokenizers.Split(Regex(pipeline.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=built_in))
    return steps


def _added(
    definition: VocabularyDefinition, ids: Sequence[int], *, special: bool
) -> list[AddedToken]:
    return [AddedToken(definition.tokens[i], special=special, normalized=False) for i in ids]
