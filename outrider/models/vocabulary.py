"""A model's vocabulary: text and chats to ids, ids to text, and the digest that peers compare."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer

from outrider.errors import (
    ArtifactCorruptError,
    ConfigError,
    InvalidRequestError,
    InvalidSamplingError,
)
from outrider.models.bpe import VocabularyDefinition, build_tokenizer, vocabulary_digest
from outrider.models.chat import Message, Segment, check_messages, check_text
from outrider.models.chat_template import ChatTemplate
from outrider.models.detokenizer import Detokenizer, decode, token_bytes
from outrider.models.folder import is_archive, unpacked
from outrider.models.folder import read_definition as folder_definition
from outrider.models.markup import markup_ids
from outrider.models.overrides import with_overrides
from outrider.models.sentencepiece_bpe import piece_bytes
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.template_variables import CONTINUES, continues, dated
from outrider.models.tokenizer_json import ChatParts, read_tokenizer_json
from outrider.reply_parsing.formats import (
    CallSyntax,
    ReplyFormat,
    call_syntax_of,
)
from outrider.today import today

if TYPE_CHECKING:
    from outrider.models.catalog import ModelSpec
    from outrider.models.disk.fetch import ReportProgress
    from outrider.models.store import ModelStore

# One call tokenizes on its caller's thread: callers bring their own threads, and a hidden pool
# would compete with the model's and warn after a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_TOKENIZER_FILE: Final = "tokenizer.json"
_FACTS_FILE: Final = "vocabulary.json"
_DERIVED_NAME: Final = "vocabulary-v5"
"""Name of the derived folder with both; its number rises whenever the files or their meaning
change."""


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """A vocabulary's properties besides its tokenizer; JSON on disk."""

    digest_hex: str
    size: int
    stop_ids: tuple[int, ...]
    control_ids: tuple[int, ...]
    chat_template: str
    bos_token: str
    eos_token: str
    adds_bos: bool = False
    """A prompt that is no chat begins with bos_token."""
    adds_eos: bool = False
    """It ends with eos_token."""
    sampling: SuggestedSampling | None = None
    """Sampling that the model's makers suggest."""
    markup_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, definition: VocabularyDefinition) -> VocabularyFacts:
        """The facts of `definition`."""
        return cls(
            digest_hex=vocabulary_digest(definition).hex(),
            size=len(definition.tokens),
            stop_ids=tuple(sorted(definition.stop_ids)),
            control_ids=tuple(sorted(definition.control_ids)),
            chat_template=definition.chat_template,
            bos_token=definition.bos_token,
            eos_token=definition.eos_token,
            adds_bos=definition.adds_bos,
            adds_eos=definition.adds_eos,
            sampling=definition.sampling,
            markup_ids=tuple(sorted(definition.markup_ids)),
        )

    @classmethod
    def from_json(cls, text: str) -> VocabularyFacts:
        """Reads `to_json`'s text. Raises ArtifactCorruptError."""
        try:
            values: dict[str, Any] = json.loads(text)
            lists = ("stop_ids", "control_ids", "markup_ids")
            values |= {name: tuple(values[name]) for name in lists}
            if values["sampling"] is not None:
                values["sampling"] = SuggestedSampling(**values["sampling"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, InvalidSamplingError) as error:
            raise ArtifactCorruptError(f"a vocabulary record is damaged: {error}") from error

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)


class Vocabulary:
    """One model's vocabulary. Immutable and thread-safe; pickles, and is rebuilt in about 0.1 s.

    Text that contains a control token's text, or markup, stays text: only `encode_chat`'s template
    makes control tokens, and it and the assistant's messages make markup. Bytes for which the
    vocabulary has no token are dropped, as the model's own tokenizer does, so decoding what was
    encoded need not give the text back.
    """

    def __init__(self, tokenizer_json: str, facts: VocabularyFacts) -> None:
        """Raises ArtifactCorruptError if the parts do not belong together."""
        try:
            tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactCorruptError(f"a tokenizer record is damaged: {error}") from error
        if tokenizer.get_vocab_size() != facts.size:
            raise ArtifactCorruptError(
                f"a tokenizer record has {tokenizer.get_vocab_size()} ids, its vocabulary record "
                f"{facts.size}"
            )
        # Set once and never again: the flag belongs to the instance, whichever thread asks.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._tokenizer_json = tokenizer_json
        self._facts = facts
        texts = [tokenizer.id_to_token(i) or "" for i in range(facts.size)]
        self._control = {texts[i]: i for i in facts.control_ids}
        self._markup = {texts[i]: i for i in facts.markup_ids}
        self._pipeline = _pipeline(tokenizer_json)
        steps = _decoder_steps(self._pipeline)
        self._bytes_of = token_bytes if steps[0]["type"] == "ByteLevel" else piece_bytes
        self._strips_space = bool(steps[-1]["type"] == "Strip")
        self._all_bytes = [self._bytes_of(text) for text in texts]
        for i in facts.control_ids:
            self._all_bytes[i] = texts[i].encode()
        self._text_bytes = list(self._all_bytes)
        for i in facts.control_ids:
            self._text_bytes[i] = b""
        self._special = frozenset(facts.control_ids)
        self._tokens_digest: bytes | None = None
        self._template = self._make_template()

    def _make_template(self) -> ChatTemplate:
        variables = {"bos_token": self._facts.bos_token, "eos_token": self._facts.eos_token}
        return ChatTemplate(
            self._facts.chat_template,
            list(self._control),
            variables,
            time.thread_time,
            list(self._markup),
        )

    @classmethod
    def from_definition(
        cls, definition: VocabularyDefinition, *, typed_markup: bool = False
    ) -> Vocabulary:
        """Builds the tokenizer. `typed_markup`: markup in anybody's text is its tokens. Raises
        ArtifactCorruptError, and ConfigError for a vocabulary that makes control tokens, or markup,
        of their texts and for a chat template that fails."""
        if not typed_markup:
            definition = replace(definition, markup_ids=markup_ids(definition))
        built = cls(build_tokenizer(definition).to_str(), VocabularyFacts.of(definition))
        if definition.chat_template:
            built._template.check()
        special = {*definition.control_ids, *definition.markup_ids}
        names = [definition.tokens[i] for i in special]
        pipeline = definition.pipeline
        # The token for unknown characters stands for text, and hides nothing.
        unknown = built._control.get(getattr(pipeline, "unknown", ""))
        for name, ids in zip(names, built.encode_batch(names), strict=True):
            if not special.isdisjoint(set(ids) - {unknown}):
                raise ConfigError(
                    f"text like {name[:64]!r} would become the token of this name; choose a model "
                    "with another vocabulary"
                )
        return built

    @classmethod
    def from_tokenizer_json(
        cls, text: str, chat: ChatParts | None = None, *, size: int = 0
    ) -> Vocabulary:
        """The vocabulary of a Hugging Face `tokenizer.json`, of `size` ids if the model has more.

        Raises ArtifactCorruptError, or ConfigError for a tokenizer that cannot be built exactly.
        """
        return cls.from_definition(read_tokenizer_json(text, chat, size=size))

    @classmethod
    def from_gguf(
        cls,
        path: Path,
        *,
        chat_template: str = "",
        stop_tokens: Iterable[str] = (),
        typed_markup: bool = False,
    ) -> Vocabulary:
        """The vocabulary in a GGUF file; takes seconds (`load_vocabulary` keeps the result).
        `chat_template` replaces the file's; `stop_tokens` are control tokens that end a reply too;
        `typed_markup` as in `from_definition`.

        Raises ArtifactCorruptError, or ConfigError for a tokenizer that cannot be built exactly, a
        template that is none, and stop tokens that it does not have.
        """
        # Imported here: a process that loads a kept vocabulary needs no GGUF reader (0.1 s).
        from outrider.models.gguf_vocabulary import read_definition

        definition = with_overrides(read_definition(path), chat_template, stop_tokens)
        return cls.from_definition(definition, typed_markup=typed_markup)

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Reads what `save` wrote. Raises ArtifactCorruptError, OSError."""
        facts = VocabularyFacts.from_json((folder / _FACTS_FILE).read_text("utf-8"))
        return cls((folder / _TOKENIZER_FILE).read_text("utf-8"), facts)

    def save(self, folder: Path) -> None:
        """Writes tokenizer and facts into an existing folder."""
        (folder / _TOKENIZER_FILE).write_text(self._tokenizer_json, "utf-8")
        (folder / _FACTS_FILE).write_text(self._facts.to_json(), "utf-8")

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[str, VocabularyFacts]]:
        return Vocabulary, (self._tokenizer_json, self._facts)

    @property
    def digest(self) -> bytes:
        """The vocabulary contract, SHA-256 [32]."""
        return bytes.fromhex(self._facts.digest_hex)

    @property
    def tokens_digest(self) -> bytes:
        """SHA-256 [32 bytes] over the meaning of each id, without chat template and stop ids.
        Vocabularies with equal digests have the same ids but may split texts differently."""
        if self._tokens_digest is None:
            digest = hashlib.sha256(b"outrider-tokens-v1")
            for token_id, text in enumerate(self._all_bytes):
                kind = b"control" if token_id in self._special else b"text"
                digest.update(kind + len(text).to_bytes(4, "little") + text)
            self._tokens_digest = digest.digest()
        return self._tokens_digest

    @property
    def facts(self) -> VocabularyFacts:
        """Properties besides the tokenizer."""
        return self._facts

    @property
    def size(self) -> int:
        """Number of ids."""
        return self._facts.size

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a reply."""
        return frozenset(self._facts.stop_ids)

    @property
    def usual_stop_id(self) -> int | None:
        """The one that ends most replies: the end token, if it does; None where no id ends one."""
        ends = sorted(self._facts.stop_ids)
        named = [token for token in ends if token == self._control.get(self._facts.eos_token)]
        return next(iter(named or ends), None)

    @property
    def strips_space(self) -> bool:
        """Whether the text of ids loses the space it begins with, which encoding puts there."""
        return self._strips_space

    @property
    def chat_template(self) -> str:
        """Jinja source; empty if the model has none."""
        return self._facts.chat_template

    @property
    def tokenizer_json(self) -> str:
        """Hugging Face `tokenizer.json`; loaded plainly it recognises control tokens and markup in
        text."""
        return self._tokenizer_json

    @property
    def pipeline(self) -> Mapping[str, Any]:
        """`tokenizer_json`, parsed, without the model's tokens and merges."""
        return self._pipeline

    def has_ids_of(self, other: Vocabulary) -> bool:
        """Whether every id means the same in both, whatever their chat templates and stop ids."""
        return self.tokens_digest == other.tokens_digest

    def difference_of_ids(self, other: Vocabulary) -> str:
        """The first id that means something else in the other vocabulary, in words; empty if there
        is none. Ids that only one of them has make no difference if they are padding: no text
        becomes one."""
        for token_id, (ours, theirs) in enumerate(
            zip(self._all_bytes, other._all_bytes, strict=False)
        ):
            if ours != theirs or (token_id in self._special) != (token_id in other._special):
                return f"id {token_id} is {_shown(ours)} in one and {_shown(theirs)} in the other"
        longer = max(self, other, key=lambda it: it.size)
        for token_id in range(min(self.size, other.size), longer.size):
            if longer._all_bytes[token_id] != f"[PAD{token_id}]".encode():
                shown = _shown(longer._all_bytes[token_id])
                return f"one has {self.size} ids, the other {other.size}; id {token_id} is {shown}"
        return ""

    def encode(self, text: str) -> list[int]:
        """The ids of `text` as plain text; nothing is added.

        Releases the GIL while it works (`Tokenizer.encode` would not), so it may run in a thread
        beside an event loop. Raises InvalidRequestError for a lone surrogate.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each of `texts`, as by `encode`."""
        for text in texts:
            check_text(text)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a text as the model writes it: its markup is tokens, its control tokens' names are
        text. Raises InvalidRequestError for a lone surrogate."""
        return self._ids_of(self._template.split_reply(text)) if self._markup else self.encode(text)

    def segments(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: str = ""
    ) -> list[Segment]:
        """The prompt of a chat with the generation prompt, as texts and tokens: control tokens,
        which only the template makes, and markup, which it and the assistant's messages make. Their
        ids one after another are the prompt's. `tools`: what the model may call, as returned by
        `check_tools`. `variables`: further ones for the template, as returned by `check_variables`,
        with the date if it shows one.

        Raises EmptyPromptError, or InvalidRequestError for a bad role, text or size, for a model
        without chat template, for tools if the template shows none, and for variables that it does
        not have.
        """
        check_messages(messages)
        if not self.chat_template:
            raise InvalidRequestError("this model has no chat template; choose a chat model")
        if self._strips_space and continues(variables):
            raise InvalidRequestError(
                f"{CONTINUES}: replies of this model lose the space that they begin with, so that "
                "they cannot continue a text; end the conversation with a user's message"
            )
        return self._template.segments(messages, tools, variables)

    def reply_format(self, tool_parser: str = "") -> ReplyFormat:
        """How the model's replies write tool calls and reasoning: tool calls in the syntax
        `tool_parser`, "" for the one that the chat template shows. Without calls if the template
        shows no tools or an unknown syntax."""
        template = self.chat_template
        if not template:
            return ReplyFormat()
        syntax = CallSyntax(tool_parser) if tool_parser else call_syntax_of(template)
        abilities = self._template.abilities
        found = ReplyFormat(syntax, abilities.reasoning, abilities.begins_in_reasoning)
        return found if abilities.tools else found.without_calls

    def needs_special_tokens(self, reply_format: ReplyFormat) -> bool:
        """Whether the markers in replies are control tokens, which have text only with
        SamplingParams.special_tokens."""
        return any(marker in self._control for marker in reply_format.markers)

    def begins_in_reasoning(self, variables: str = "") -> bool:
        """Whether the prompts of chats with these variables (`check_variables`) end in the tag that
        begins reasoning, as far as a small chat tells."""
        return bool(self.chat_template) and self._template.begins_in_reasoning(variables)

    @property
    def template_variables(self) -> frozenset[str]:
        """Names of the variables that the chat template takes from a client."""
        return self._template.variables if self.chat_template else frozenset()

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template puts tool definitions into the prompt."""
        return bool(self.chat_template) and self._template.abilities.tools

    def raw_segments(self, text: str, *, is_prompt: bool = False) -> list[Segment]:
        """A text split at the control tokens and the markup that it contains. `is_prompt`: with
        the tokens that the model's prompts begin and end with, where the text has none of its own.
        Raises InvalidRequestError for a lone surrogate."""
        segments = self._template.split(text)
        begin, end = Segment(self._facts.bos_token, True), Segment(self._facts.eos_token, True)
        if is_prompt and self._facts.adds_bos and segments[:1] != [begin]:
            segments.insert(0, begin)
        if is_prompt and self._facts.adds_eos and segments[-1:] != [end]:
            segments.append(end)
        return segments

    def token_id(self, text: str) -> int:
        """The id of the control token or the markup of that text, as a segment has it."""
        found = self._control.get(text)
        return self._markup[text] if found is None else found

    def find_control(self, text: str) -> int | None:
        """Id of the control token with this text; None if there is none."""
        return self._control.get(text)

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: str = ""
    ) -> list[int]:
        """The prompt ids of a chat, begun today if its template shows a date and none is among the
        variables. Raises what `segments` raises."""
        known = self.template_variables if self.chat_template else ()
        segments = self.segments(messages, tools, dated(variables, known, today()))
        return self._ids_of(segments)

    def _ids_of(self, segments: Sequence[Segment]) -> list[int]:
        texts = iter(self.encode_batch([s.text for s in segments if not s.is_token]))
        ids: list[int] = []
        for segment in segments:
            ids += [self.token_id(segment.text)] if segment.is_token else next(texts)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for; a control token's are its name."""
        if not 0 <= token_id < self.size:
            raise InvalidRequestError(f"token id {token_id} is outside the vocabulary")
        return self._all_bytes[token_id]

    def bytes_as(self, token_id: int, text: str) -> bytes:
        """Bytes of an id if its token had this text in a tokenizer of this kind; used to compare
        another tokenizer with this one."""
        return text.encode() if self.is_special(token_id) else self._bytes_of(text)

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes that an id adds to a text; a control token adds none."""
        if not 0 <= token_id < len(self._text_bytes):
            raise InvalidRequestError(f"token id {token_id} is outside the vocabulary")
        return self._text_bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token."""
        return token_id in self._special

    def detokenizer(self, *, keep_special: bool = False) -> Detokenizer:
        """A fresh detokenizer; control tokens have no text unless `keep_special`."""
        table = self._all_bytes if keep_special else self._text_bytes
        return Detokenizer(table, strips_space=self._strips_space)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """The text of `ids`. Raises InvalidRequestError for an id outside the vocabulary."""
        table = self._all_bytes if keep_special else self._text_bytes
        return decode(table, ids, strips_space=self._strips_space)


def _shown(text: bytes) -> str:
    """A token's bytes for a message."""
    return repr(text[:32].decode(errors="replace"))


def _pipeline(tokenizer_json: str) -> dict[str, Any]:
    """The pipeline without tokens and merges, which are nearly all of the text. Raises
    ArtifactCorruptError."""
    try:
        definition: dict[str, Any] = json.loads(tokenizer_json)
        model = definition["model"].items()
        kept = {name: value for name, value in model if name not in ("vocab", "merges")}
        return {**definition, "model": kept}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ArtifactCorruptError(f"a tokenizer record is damaged: {error}") from error


def _decoder_steps(pipeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Decoder steps of a tokenizer made by bpe.build_tokenizer. Raises ArtifactCorruptError for
    others."""
    try:
        decoder: dict[str, Any] = pipeline["decoder"]
        steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        if steps[0]["type"] in ("ByteLevel", "Replace"):
            return steps
    except (TypeError, LookupError, AttributeError):
        pass
    raise ArtifactCorruptError("a tokenizer record has no decoder that is known")


def load_vocabulary(
    spec: ModelSpec, store: ModelStore, progress: ReportProgress | None = None
) -> Vocabulary:
    """The vocabulary of `spec`; the model is fetched if it is not in the store.

    Parsing the model file takes seconds, so the result is kept in the store beside the model and
    verified on every load, without reading the model. Definitions that change the vocabulary have
    folders of their own. Blocks: call it before an event loop runs, or in a thread. Raises what
    ModelStore.ensure, ModelStore.derived, Vocabulary.from_gguf and folder.unpacked raise.
    """
    kept = _kept(spec, store)
    if kept is not None:
        return Vocabulary.load(kept)
    artifact = store.ensure(spec.source, progress=progress, sha256=spec.sha256)

    def build(folder: Path) -> None:
        template, stop_tokens = spec.chat_template, spec.stop_tokens
        try:
            if is_archive(artifact.path):
                definition = folder_definition(unpacked(artifact, store))
                definition = with_overrides(definition, template, stop_tokens)
                vocabulary = Vocabulary.from_definition(definition, typed_markup=spec.typed_markup)
            else:
                vocabulary = Vocabulary.from_gguf(
                    artifact.path,
                    chat_template=template,
                    stop_tokens=stop_tokens,
                    typed_markup=spec.typed_markup,
                )
            vocabulary.save(folder)
        except ConfigError as error:
            raise ConfigError(f"model {spec.name}: {error.message}") from error

    return Vocabulary.load(store.derived(artifact, _kept_name(spec), build))


def load_digest(spec: ModelSpec, store: ModelStore) -> bytes:
    """`load_vocabulary(spec, store).digest`, without building the tokenizer if it is kept. Raises
    what load_vocabulary raises."""
    kept = _kept(spec, store)
    if kept is None:
        return load_vocabulary(spec, store).digest
    facts = VocabularyFacts.from_json((kept / _FACTS_FILE).read_text("utf-8"))
    return bytes.fromhex(facts.digest_hex)


def _kept(spec: ModelSpec, store: ModelStore) -> Path | None:
    return store.intact(spec.source, _kept_name(spec), sha256=spec.sha256)


def _kept_name(spec: ModelSpec) -> str:
    return "-".join(filter(None, (_DERIVED_NAME, spec.vocabulary_key())))
