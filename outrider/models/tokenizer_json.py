"""Reads a vocabulary from Hugging Face's `tokenizer.json` and the files beside it. Pure.

Every part of the pipeline is compared with those that bpe.py builds; a file with another part is
refused by name. The result has the ids of the file's own tokenizer, and the digest of the same
vocabulary in a GGUF file.

The parts for batches (truncation, padding) are ignored, and those for prompts (the post-processor)
but for a begin token: the chat template writes the tokens around a chat.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NoReturn

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.detokenizer import BYTE_ALPHABET
from outrider.models.normalizer_table import check_table
from outrider.models.pre_tokenizers import DIGITS, GPT2_REGEX, Pipeline
from outrider.models.sentencepiece_bpe import (
    BYTE_TOKEN,
    SPACE,
    SpacePipeline,
    SpacePrefix,
    lacking_byte,
)
from outrider.models.stop_tokens import stop_ids_of
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.unigram import FORMS, RUNS_OF_SPACES, NormalizerStep, UnigramPipeline

MAX_TOKENS: Final = 1 << 20
CAN_BE: Final = (
    "tokenizers that can be served are BPE over bytes (ByteLevel, after an NFC normalizer or none, "
    "digits cut out, and Splits by patterns), SentencePiece's BPE (spaces as U+2581, with "
    "byte_fallback or an unknown token) and Unigram (with an unknown token; normalized by a "
    "precompiled table, a Unicode form, Strip or Replace)"
)

_BROKEN: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, RecursionError),
    OverflowError,  # a whole number beyond all floats, as a score
)
"""Exceptions raised by reading values of an unexpected form."""


@dataclass(frozen=True, slots=True)
class ChatParts:
    """Contents of the files beside a `tokenizer.json`."""

    template: str = ""
    """Jinja source."""
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool | None = None
    """Whether prompts that are no chats begin with bos_token; None: as the tokenizer.json says."""
    adds_eos: bool = False
    """Whether they end with eos_token."""
    stop_ids: Sequence[int] = ()
    """Ids that the generation's settings name as ends of a reply."""
    sampling: SuggestedSampling | None = None
    """Sampling that the files suggest."""


def read_tokenizer_json(
    text: str, chat: ChatParts | None = None, *, size: int = 0
) -> VocabularyDefinition:
    """The vocabulary, with the chat's parts. Ids behind the last one, up to `size`, are filled up
    with tokens that no text becomes, `[PAD<id>]` as in GGUF files. Control tokens behind the
    model's last id are left out, since the model has no row for them: tokenizers of Gemma 3's text
    models include the image token of the larger models.

    Raises ArtifactCorruptError if the file is no tokenizer.json, ConfigError, which names the part,
    for a tokenizer that cannot be built exactly.
    """
    chat = chat or ChatParts()
    try:
        spec = json.loads(text)
        found = _reader(spec)
        found.leave_out_behind(size)
        tokens = found.tokens(size)
        control, user_defined = found.added()
        pipeline = found.pipeline(tokens, user_defined)
        merges = found.merges()
        begins_with_bos = found.begins_with(chat.bos_token)
    except _BROKEN as error:
        raise ArtifactCorruptError(
            f"this is no whole tokenizer.json ({type(error).__name__}: {error}"[:200] + "); fetch "
            "it again"
        ) from error
    if not isinstance(pipeline, Pipeline) and pipeline.unknown:
        control = sorted({*control, tokens.index(pipeline.unknown), *found.padding})
        user_defined = [i for i in user_defined if i not in control]
    named = [*chat.stop_ids, *_ids_of(tokens, chat.eos_token)]
    if not all(type(i) is int and 0 <= i < len(tokens) for i in named):
        raise ArtifactCorruptError("an id that ends replies lies outside the vocabulary")
    return VocabularyDefinition(
        tokens=tokens,
        merges=merges,
        pipeline=pipeline,
        control_ids=control,
        user_defined_ids=user_defined,
        stop_ids=stop_ids_of(tokens, control, named),
        bos_token=chat.bos_token,
        eos_token=chat.eos_token,
        chat_template=chat.template,
        adds_bos=begins_with_bos if chat.adds_bos is None else chat.adds_bos,
        adds_eos=chat.adds_eos,
        sampling=chat.sampling,
    )


def _ids_of(tokens: Sequence[str], text: str) -> list[int]:
    return [tokens.index(text)] if text in tokens else []


def _refuse(what: str) -> NoReturn:
    raise ConfigError(f"this tokenizer.json cannot be served exactly: {what}; {CAN_BE}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        _refuse(otherwise)


def _looks_like_control(text: str) -> bool:
    """Some files do not mark all control tokens as special; llama.cpp's converter goes by their
    form too."""
    is_named = text.startswith(("<|", "<\uff5c")) and text.endswith(("|>", "\uff5c>"))
    return is_named or (text.startswith("<unused") and text.endswith(">"))


def _reader(spec: Mapping[str, Any]) -> _Reader:
    """The reader for the file's kind of model."""
    model = spec["model"]
    # Files of before 2021 leave the type out.
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind == "Unigram":
        return _UnigramReader(spec)
    _require(kind == "BPE", f"its model is {kind!r}, neither BPE nor Unigram")
    return _Reader(spec)


class _Reader:
    """The parts of one file. Besides ConfigError it raises _BROKEN for values of another form."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._model: Mapping[str, Any] = spec["model"]
        self._added: list[Mapping[str, Any]] = list(spec.get("added_tokens") or ())
        self.padding: Sequence[int] = ()
        """Ids that would be matched in texts if they were not control tokens."""
        for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            _require(not self._model.get(option), f"its model has {option}")

    def leave_out_behind(self, size: int) -> None:
        """Control tokens of other ids than the model's `size`; 0: none."""
        if size:
            self._added = [t for t in self._added if not (t["special"] and t["id"] >= size)]

    def tokens(self, size: int) -> list[str]:
        """By id."""
        by_id: dict[int, str] = {}
        listed = [*self._pieces(), *((t["content"], t["id"]) for t in self._added)]
        for text, number in listed:
            if type(number) is not int or not isinstance(text, str):
                raise TypeError("a token is no text with a number")
            if by_id.setdefault(number, text) != text:
                raise ArtifactCorruptError(f"id {number} stands for two tokens")
        count = max(by_id, default=-1) + 1
        _require(0 < count <= MAX_TOKENS, f"it has {count} ids")
        lacking = next((i for i in range(count) if i not in by_id), None)
        _require(lacking is None, f"its id {lacking} has no token")
        if size:
            _require(count <= size, f"it has {count} ids, the model {size}")
            _require(size <= MAX_TOKENS, f"the model has {size} ids")
        return [by_id.get(i, f"[PAD{i}]") for i in range(max(count, size))]

    def _pieces(self) -> Iterable[tuple[str, int]]:
        pieces: Mapping[str, int] = self._model["vocab"]
        return pieces.items()

    def merges(self) -> list[str]:
        """In rank order."""
        pairs = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in self._model["merges"]
        ]
        if any(" " in part for pair in pairs for part in pair):
            _refuse("a merge has a space in a token")
        return [f"{left} {right}" for left, right in pairs]

    def added(self) -> tuple[list[int], list[int]]:
        """Ids of control tokens, and of the others."""
        control, user_defined = list[int](), list[int]()
        for token in self._added:
            text = token["content"]
            for option in ("lstrip", "rstrip", "single_word"):
                _require(not token.get(option), f"its token {text!r} has {option}")
            is_control = bool(token["special"]) or _looks_like_control(text)
            (control if is_control else user_defined).append(int(token["id"]))
        return sorted(control), sorted(user_defined)

    def begins_with(self, token: str) -> bool:
        """Whether the file puts this token, and no other, in front of a text."""
        around = [
            part
            for step in _steps(self._spec.get("post_processor"), "processors")
            if step["type"] == "TemplateProcessing"
            for part in step["single"]
        ]
        before = list(takewhile(lambda part: "SpecialToken" in part, around))
        return [part["SpecialToken"]["id"] for part in before] == [token]

    def pipeline(
        self, tokens: list[str], user_defined: list[int]
    ) -> Pipeline | SpacePipeline | UnigramPipeline:
        """Raises ConfigError for one that is not known."""
        decoder = self._spec.get("decoder") or {"type": "none"}
        if decoder["type"] == "ByteLevel":
            return self._byte_level(tokens, user_defined)
        return self._spaces(tokens, user_defined)

    def _byte_level(self, tokens: list[str], user_defined: list[int]) -> Pipeline:
        normalizer = self._spec.get("normalizer")
        kinds = [step["type"] for step in _steps(normalizer, "normalizers")]
        _require(kinds in ([], ["NFC"]), f"its normalizer is {kinds}")
        _require(not kinds or not self._normalized(user_defined), "an added token is normalized")
        lossless = BYTE_ALPHABET.keys() <= set(tokens)
        _require(
            lossless or self._model.get("unk_token") is None,
            "it has an unknown token, and bytes without one",
        )
        *before, last = _steps(self._spec.get("pre_tokenizer"), "pretokenizers") or [{"type": ""}]
        _require(
            last["type"] == "ByteLevel" and not last.get("add_prefix_space", True),
            f"its pre-tokenizer ends in {last['type']!r}, or adds a space",
        )
        splits = [_split_of(step) for step in before]
        if last.get("use_regex", True):
            splits.append(GPT2_REGEX)
        else:
            # Built in as a step of its own it is another engine's; nobody writes it out.
            _require(splits[-1:] != [GPT2_REGEX], "it writes GPT-2's pattern out")
        return Pipeline(
            splits=tuple(splits),
            nfc=kinds == ["NFC"],
            ignore_merges=bool(self._model.get("ignore_merges")),
        )

    def _spaces(self, tokens: list[str], user_defined: list[int]) -> SpacePipeline:
        _require(not self._model.get("ignore_merges"), "it ignores merges")
        _require(not any(" " in text for text in self._model["vocab"]), "a token has a space")
        unknown = self._model.get("unk_token") or ""
        _require(not unknown or unknown in tokens, f"its unknown token {unknown!r} has no id")
        has_fallback = bool(self._model.get("byte_fallback"))
        num_bytes = sum(bool(BYTE_TOKEN.fullmatch(text)) for text in tokens)
        is_whole = lacking_byte(set(tokens)) is None if has_fallback else not num_bytes
        _require(
            is_whole, f"{num_bytes} tokens are named as bytes, byte_fallback is {has_fallback}"
        )
        _require(has_fallback or bool(unknown), "it has neither byte_fallback nor unk_token")
        prefix = self._prefix()
        strips = self._strips_space(has_fallback)
        kinds = {bool(t["normalized"]) for t in self._added if t["id"] in set(user_defined)}
        _require(len(kinds) < 2, "some of its added tokens are normalized and some are not")
        return SpacePipeline(
            prefix=prefix,
            strips_space=strips,
            unknown=unknown,
            byte_fallback=has_fallback,
            fuse_unknown=bool(self._model.get("fuse_unk")),
            finds_added_as_typed=kinds == {False},
        )

    def _prefix(self) -> SpacePrefix:
        steps = _steps(self._spec.get("normalizer"), "normalizers")
        before = _steps(self._spec.get("pre_tokenizer"), "pretokenizers")
        replaces = steps[-1:] == [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
        if replaces:
            # Gemma 2 splits at spaces where none is left.
            _require(
                all(_is_split_at_space(step) for step in before),
                f"its pre-tokenizer is {[step['type'] for step in before]}",
            )
            if len(steps) == 1:
                return SpacePrefix.NONE
            _require(
                steps[:-1] == [{"type": "Prepend", "prepend": SPACE}],
                f"its normalizer is {[step['type'] for step in steps]}",
            )
            return SpacePrefix.EACH
        _require(not steps, f"its normalizer is {[step['type'] for step in steps]}")
        is_metaspace = [step["type"] for step in before] == ["Metaspace"]
        _require(is_metaspace, f"its pre-tokenizer is {[step['type'] for step in before]}")
        _require(before[0].get("split") is False, "its Metaspace splits")
        return _metaspace_prefix(before[0])

    def _strips_space(self, has_fallback: bool) -> bool:
        """By the decoder."""
        steps = _steps(self._spec.get("decoder"), "decoders")
        kinds = [step["type"] for step in steps]
        if kinds == ["Metaspace"] and not has_fallback:
            return _metaspace_prefix(steps[0]) is not SpacePrefix.NONE
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        strips = steps[-1:] == [strip]
        expected: list[Mapping[str, Any]] = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        ]
        expected += [{"type": "ByteFallback"}] if has_fallback else []
        expected += [{"type": "Fuse"}]
        _require((steps[:-1] if strips else steps) == expected, f"its decoder is {kinds}")
        return strips

    def _normalized(self, ids: Sequence[int]) -> bool:
        return any(token["normalized"] for token in self._added if token["id"] in ids)


class _UnigramReader(_Reader):
    """The parts of a file with scores."""

    def _pieces(self) -> Iterable[tuple[str, int]]:
        return [(text, index) for index, (text, _) in enumerate(self._model["vocab"])]

    def merges(self) -> list[str]:
        return []

    def pipeline(self, tokens: list[str], user_defined: list[int]) -> UnigramPipeline:
        scores = [score for _, score in self._model["vocab"]]
        if not all(type(score) in (int, float) and math.isfinite(score) for score in scores):
            raise ValueError("a score is no number")
        unknown: Any = self._model.get("unk_id")
        _require(type(unknown) is int and 0 <= unknown < len(scores), "it has no unknown token")
        named = {text for text, _ in self._model["vocab"]}
        _require(len(named) == len(scores), "two of its pieces have the same text")
        last = max([len(scores) - 1, *(token["id"] for token in self._added)])
        added = {token["id"] for token in self._added}
        _require(set(range(len(scores), last + 1)) <= added, "an id behind its pieces has no token")
        self.padding = range(last + 1, len(tokens))
        _require(not self._normalized(user_defined), "an added token is normalized")
        has_fallback = bool(self._model.get("byte_fallback"))
        _require(
            not has_fallback or lacking_byte(set(tokens)) is None,
            "its byte_fallback lacks the tokens of some bytes",
        )
        splits = _steps(self._spec.get("pre_tokenizer"), "pretokenizers")
        kinds = [step["type"] for step in splits]
        _require(
            kinds in ([], ["Metaspace"], ["WhitespaceSplit", "Metaspace"]),
            f"its pre-tokenizer is {kinds}",
        )
        steps = tuple(
            step
            for each in _steps(self._spec.get("normalizer"), "normalizers")
            for step in _normalizer_steps(each)
        )
        return UnigramPipeline(
            scores=[float(score) for score in scores],
            normalizers=steps,
            splits_whitespace=len(splits) == 2,
            writes_spaces=bool(splits),
            prefix=_metaspace_prefix(splits[-1]) if splits else SpacePrefix.NONE,
            splits_words=bool(splits and splits[-1].get("split", True)),
            strips_space=self._strips_space(has_fallback),
            unknown=tokens[unknown],
            byte_fallback=has_fallback,
        )


def _normalizer_steps(step: Mapping[str, Any]) -> list[NormalizerStep]:
    """The steps of one part of a normalizer."""
    kind = step["type"]
    if kind == "Precompiled":
        table = step["precompiled_charsmap"]
        if table:
            check_table(base64.b64decode(table, validate=True))
        return [NormalizerStep("precompiled", new=table)] if table else []
    if kind.lower() in FORMS:
        return [NormalizerStep(kind.lower())]
    if kind == "Strip":
        sides = [side for side in ("left", "right") if step[f"strip_{side}"]]
        return [NormalizerStep(f"strip-{side}") for side in sides]
    if kind == "Prepend":
        return [NormalizerStep("prepend", new=str(step["prepend"]))]
    _require(kind == "Replace", f"its normalizer has {kind!r}")
    pattern, new = step["pattern"], str(step["content"])
    if "String" in pattern:
        _require(bool(pattern["String"]), "it replaces nothing by a text")
        return [NormalizerStep("replace", str(pattern["String"]), new)]
    _require(pattern.get("Regex") == RUNS_OF_SPACES, "its normalizer replaces another pattern")
    return [NormalizerStep("replace-runs", RUNS_OF_SPACES, new)]


def _steps(part: Mapping[str, Any] | None, within: str) -> list[Mapping[str, Any]]:
    """Steps of a part of the pipeline: none, one, or a sequence, which may contain sequences."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inner in part[within] for step in _steps(inner, within)]


def _split_of(step: Mapping[str, Any]) -> str:
    if step["type"] == "Digits":
        _require(step["individual_digits"] is True, "it cuts digits out in groups")
        return DIGITS
    known = step["type"] == "Split" and step.get("behavior") == "Isolated" and not step["invert"]
    _require(known, f"its pre-tokenizer has {step['type']!r}")
    pattern = step["pattern"]
    _require("Regex" in pattern, "it splits at a text")
    regex = pattern["Regex"]
    if not isinstance(regex, str) or regex == DIGITS:
        _refuse("it splits by what is no pattern")
    return regex


def _is_split_at_space(step: Mapping[str, Any]) -> bool:
    return bool(step["type"] == "Split" and step["pattern"] == {"String": " "})


def _metaspace_prefix(step: Mapping[str, Any]) -> SpacePrefix:
    _require(step.get("replacement") == SPACE, "it writes spaces as another character")
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    _require(scheme in ("always", "never"), f"its Metaspace has the prepend_scheme {scheme!r}")
    return SpacePrefix.MISSING if scheme == "always" else SpacePrefix.NONE
