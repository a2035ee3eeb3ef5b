"""Vocabularies: their definition, their digest, and the Hugging Face tokenizer built from it.

Only pipelines whose parts are known exactly are built: they equal the tokenizer of the models they
come from. Anything else is refused, since a nearly right tokenizer silently gives the model a text
it was not trained on.

The digest is SHA-256 over a canonical form that depends on no library's serialisation, so it is the
same in every process and after every library update, whichever file the vocabulary was read from.
Two sides with equal digests give the same meaning to every id and every chat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.sentencepiece_bpe import SpacePipeline, build_space_tokenizer
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.unigram import UnigramPipeline, build_unigram_tokenizer

GPT2_REGEX: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K_REGEX: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps that a text goes through before byte-level BPE."""

    regex: str
    """Oniguruma pattern whose matches BPE sees one by one."""
    single_digits: bool = False
    """Numeric characters are cut out one by one before the regex sees the rest."""
    nfc: bool = False
    """Unicode normalization form C comes first."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is not built by merges."""


@dataclass(frozen=True, slots=True)
class VocabularyDefinition:
    """Everything that decides which ids a text or a chat becomes.

    Raises ArtifactCorruptError at construction when the parts contradict each other.
    """

    tokens: Sequence[str]
    """[size] token texts; the index is the id. In GPT-2's byte alphabet with a Pipeline; with a
    SpacePipeline as SentencePiece writes them, a space as U+2581."""
    merges: Sequence[str]
    """BPE merges, "left right", in rank order; none with a UnigramPipeline."""
    pipeline: Pipeline | SpacePipeline | UnigramPipeline
    """Steps before BPE when encoding, and after it when decoding; a UnigramPipeline has no BPE."""
    control_ids: Sequence[int]
    """Ids of control tokens, which never stand for text."""
    user_defined_ids: Sequence[int]
    """Ids of texts that are matched before BPE and are ordinary text."""
    stop_ids: Sequence[int]
    """Ids that end a reply."""
    bos_token: str
    """Text of the token that the chat template calls bos_token; may be empty."""
    eos_token: str
    chat_template: str
    """Jinja source; empty if the model has none."""
    sampling: SuggestedSampling | None = None
    """Sampling that the model's makers suggest; not in the digest, since no prompt's ids depend on
    it."""

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if len(set(self.tokens)) != size:
            raise ArtifactCorruptError("two token ids of the vocabulary have the same text")
        listed = (*self.control_ids, *self.user_defined_ids, *self.stop_ids)
        if not all(0 <= i < size for i in listed):
            raise ArtifactCorruptError("a special token id lies outside the vocabulary")
        if any(merge.count(" ") != 1 for merge in self.merges):
            raise ArtifactCorruptError("a BPE merge is not a pair of tokens")
        control = {self.tokens[i] for i in self.control_ids}
        if "" in control:
            raise ArtifactCorruptError("a control token has no text")
        # Then text could become a control token, which only the chat template may write.
        made = next((m for m in self.merges if m.replace(" ", "", 1) in control), None)
        if made is not None:
            raise ArtifactCorruptError(f"the BPE merge {made!r} makes a control token out of text")


_LLAMA3: Final = Pipeline(_CL100K_REGEX.replace("DIGITS", r"\p{N}{1,3}"), ignore_merges=True)
_PIPELINES: Final = {
    "gpt-2": Pipeline(GPT2_REGEX),
    "smollm": Pipeline(GPT2_REGEX, single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": Pipeline(_CL100K_REGEX.replace("DIGITS", r"\p{N}"), nfc=True),
}


def pipeline_of(pre_tokenizer: str) -> Pipeline:
    """The pipeline that llama.cpp gave this name (`tokenizer.ggml.pre`). Raises ConfigError for one
    that cannot be built exactly."""
    try:
        return _PIPELINES[pre_tokenizer]
    except KeyError:
        raise ConfigError(
            f"the pre-tokenizer {pre_tokenizer!r} cannot be built exactly; choose a model with "
            f"one of {', '.join(sorted(_PIPELINES))}, or one with a tokenizer.json"
        ) from None


def build_tokenizer(definition: VocabularyDefinition) -> Tokenizer:
    """The tokenizer of `definition`, with control tokens recognised in text.

    Bytes without a token of their own are dropped before byte-level BPE merges, as in the Hugging
    Face tokenizer (unk_token null) and in llama.cpp. Raises ConfigError.
    """
    pipeline = definition.pipeline
    control, user_defined = definition.control_ids, definition.user_defined_ids
    if isinstance(pipeline, UnigramPipeline):
        try:
            return build_unigram_tokenizer(pipeline, definition.tokens, control, user_defined)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactCorruptError(f"the vocabulary contradicts itself: {error}") from error
    vocabulary = {text: i for i, text in enumerate(definition.tokens)}
    merges = [_pair(merge) for merge in definition.merges]
    try:
        if isinstance(pipeline, SpacePipeline):
            tokenizer = build_space_tokenizer(pipeline, vocabulary, merges)
        else:
            tokenizer = _byte_tokenizer(pipeline, vocabulary, merges)
        tokenizer.add_special_tokens(_added(definition, control, special=True))
        tokenizer.add_tokens(_added(definition, user_defined, special=False))
    except Exception as error:  # the library raises bare Exception
        raise ArtifactCorruptError(f"the vocabulary contradicts itself: {error}") from error
    return tokenizer


def _byte_tokenizer(
    pipeline: Pipeline, vocabulary: dict[str, int], merges: list[tuple[str, str]]
) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=pipeline.ignore_merges,
        )
    )
    if pipeline.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(pipeline))
    tokenizer.decoder = decoders.ByteLevel()
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
    # SentencePiece looks for user-defined pieces in normalized text, where spaces are U+2581.
    pipeline = definition.pipeline
    as_typed = not isinstance(pipeline, SpacePipeline) or pipeline.finds_added_as_typed
    normalized = not (special or as_typed)
    return [AddedToken(definition.tokens[i], special=special, normalized=normalized) for i in ids]


_CANONICAL_FORM: Final = 1
"""Version of the canonical form; part of it."""


def canonical_form(definition: VocabularyDefinition) -> bytes:
    """ASCII JSON with sorted keys: BPE model, added tokens, normalizer and pre-tokenizer, stop
    ids, chat template and its variables."""
    added = [(i, True) for i in definition.control_ids]
    added += [(i, False) for i in definition.user_defined_ids]
    kinds = {Pipeline: "byte-level BPE", SpacePipeline: "SentencePiece BPE"}
    form: dict[str, Any] = {
        "form": _CANONICAL_FORM,
        "model": {
            "type": kinds.get(type(definition.pipeline), "Unigram"),
            "tokens": list(definition.tokens),
            "merges": list(definition.merges),
        },
        "added_tokens": [
            {"id": i, "text": definition.tokens[i], "special": special}
            for i, special in sorted(added)
        ],
        "pipeline": asdict(definition.pipeline),
        "stop_ids": sorted(definition.stop_ids),
        "chat": {
            "template": definition.chat_template,
            "bos_token": definition.bos_token,
            "eos_token": definition.eos_token,
        },
    }
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def vocabulary_digest(definition: VocabularyDefinition) -> bytes:
    """SHA-256 [32] of the canonical form."""
    return hashlib.sha256(canonical_form(definition)).digest()
