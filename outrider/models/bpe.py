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

from outrider.errors import ArtifactCorruptError
from outrider.models.pre_tokenizers import DIGITS, GPT2_REGEX, Pipeline
from outrider.models.sentencepiece_bpe import SpacePipeline, build_space_tokenizer
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.unigram import UnigramPipeline, build_unigram_tokenizer


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
    adds_bos: bool = False
    """A prompt that is no chat begins with bos_token."""
    adds_eos: bool = False
    """It ends with eos_token."""
    sampling: SuggestedSampling | None = None
    """Sampling that the model's makers suggest; not in the digest, since no prompt's ids depend on
    it."""
    markup_ids: Sequence[int] = ()
    """Ids of user-defined tokens whose texts are text in messages (markup.py)."""

    def __post_init__(self) -> None:
        size = len(self.tokens)
        if len(set(self.tokens)) != size:
            raise ArtifactCorruptError("two token ids of the vocabulary have the same text")
        if not set(self.markup_ids) <= set(self.user_defined_ids):
            raise ArtifactCorruptError("a token of markup is no user-defined one")
        listed = (*self.control_ids, *self.user_defined_ids, *self.stop_ids)
        if not all(0 <= i < size for i in listed):
            raise ArtifactCorruptError("a special token id lies outside the vocabulary")
        if any(merge.count(" ") != 1 for merge in self.merges):
            raise ArtifactCorruptError("a BPE merge is not a pair of tokens")
        control = {self.tokens[i] for i in self.control_ids}
        for adds, name, text in (
            (self.adds_bos, "bos_token", self.bos_token),
            (self.adds_eos, "eos_token", self.eos_token),
        ):
            if adds and text not in control:
                raise ArtifactCorruptError(
                    f"the model's files say that prompts have a {name}, and {text[:64]!r} is no "
                    "control token"
                )
        if "" in control:
            raise ArtifactCorruptError("a control token has no text")
        # Then text could become a control token, which only the chat template may write.
        made = next((m for m in self.merges if m.replace(" ", "", 1) in control), None)
        if made is not None:
            raise ArtifactCorruptError(f"the BPE merge {made!r} makes a control token out of text")


def build_tokenizer(definition: VocabularyDefinition) -> Tokenizer:
    """The tokenizer of `definition`, with control tokens and markup recognised in text.

    Bytes without a token of their own are dropped before byte-level BPE merges, as in the Hugging
    Face tokenizer (unk_token null) and in llama.cpp. Raises ConfigError.
    """
    pipeline = definition.pipeline
    # The library leaves all that is special text, once that is asked of it.
    special = [*definition.control_ids, *definition.markup_ids]
    plain = [i for i in definition.user_defined_ids if i not in set(definition.markup_ids)]
    if isinstance(pipeline, UnigramPipeline):
        try:
            return build_unigram_tokenizer(pipeline, definition.tokens, special, plain)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactCorruptError(f"the vocabulary contradicts itself: {error}") from error
    vocabulary = {text: i for i, text in enumerate(definition.tokens)}
    merges = [_pair(merge) for merge in definition.merges]
    try:
        if isinstance(pipeline, SpacePipeline):
            tokenizer = build_space_tokenizer(pipeline, vocabulary, merges)
        else:
            tokenizer = _byte_tokenizer(pipeline, vocabulary, merges)
        tokenizer.add_special_tokens(_added(definition, special, special=True))
        tokenizer.add_tokens(_added(definition, plain, special=False))
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
    # ByteLevel has GPT-2's pattern built in; any other comes as a step before it.
    *before, last = pipeline.splits or ("",)
    built_in = last == GPT2_REGEX
    splits = before if built_in or not last else pipeline.splits
    steps = [
        pre_tokenizers.Digits(individual_digits=True)
        if split == DIGITS
        else pre_tokenizers.Split(Regex(split), behavior="isolated")
        for split in splits
    ]
    return [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=built_in)]


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
        "pipeline": _pipeline_form(definition.pipeline),
        "stop_ids": sorted(definition.stop_ids),
        "chat": {
            "template": definition.chat_template,
            "bos_token": definition.bos_token,
            "eos_token": definition.eos_token,
        }
        | {name: True for name in ("adds_bos", "adds_eos") if getattr(definition, name)},
    }
    if definition.markup_ids:
        form["markup_ids"] = sorted(definition.markup_ids)
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _pipeline_form(pipeline: Pipeline | SpacePipeline | UnigramPipeline) -> dict[str, Any]:
    """Of byte-level BPE the last pattern, whether digits are cut out first, and what is between."""
    if not isinstance(pipeline, Pipeline):
        return asdict(pipeline)
    *between, last = pipeline.splits or ("",)
    single_digits = between[:1] == [DIGITS]
    between = between[single_digits:]
    form = asdict(pipeline) | {"regex": last, "single_digits": single_digits}
    del form["splits"]
    return form | ({"between": between} if between else {})


def vocabulary_digest(definition: VocabularyDefinition) -> bytes:
    """SHA-256 [32] of the canonical form."""
    return hashlib.sha256(canonical_form(definition)).digest()
