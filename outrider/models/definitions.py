"""Model definitions: what a name stands for, read from tables and checked. Pure.

    [models.my-model]
    source = "file:/models/my-model.Q8_0.gguf"
    stop_tokens = ["<|eot_id|>"]
    [models.my-model.engine]
    precision = "f32"

Names reach the store from requests, sources never do: a client chooses among the definitions, it
cannot make a service read a file or a URL.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, TypeGuard, get_args

from outrider.config import toml_literal
from outrider.errors import ConfigError, InvalidSamplingError, UnknownModelError
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.reply_parsing.formats import CallSyntax

Precision: TypeAlias = Literal["auto", "bf16", "f32"]

MAX_DEFINITIONS: Final = 256
"""Most models of a whole catalog."""
MAX_TEMPLATE_CHARS: Final = 1 << 18
"""Most characters of a chat template; the same limit holds for templates in model files."""
MAX_STOP_TOKENS: Final = 32
MAX_TOKEN_CHARS: Final = 256
MAX_SOURCE_CHARS: Final = 2048
MAX_CONTEXT_TOKENS: Final = 1 << 24
MAX_FIXED_ROWS: Final = 4096
WEIGHT_BITS: Final = (4, 8)
NO_DRAFT: Final = "none"
"""Value of `draft` for a model for which edges run no draft model."""
_NAMES_SHOWN: Final = 16
_PLAIN_KEYS: Final = (
    *("sha256", "max_context_tokens", "chat_template", "typed_markup", "tool_parser", "draft"),
    *("embeds", "tested"),
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NAME_RULE: Final = "a-z, 0-9, '.', '_', '-', at most 64, the first a letter or a digit"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Settings of the engine that suit a model; a replica's own win. None: the engine's default."""

    precision: Precision | None = None
    """Overrides EngineConfig.precision; None: not set."""
    dynamic_quantization: bool | None = None
    """Overrides EngineConfig.dynamic_quantization; None: not set."""
    max_fixed_rows: int | None = None
    """Overrides EngineConfig.max_fixed_rows; None: not set."""
    weight_bits: int | None = None
    """Overrides EngineConfig.weight_bits; None: not set."""

    def given(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model."""

    name: str
    """The name by which requests and configurations call the model."""
    source: str
    """Source of its weights, in the model store's syntax."""
    sha256: str = ""
    """SHA-256 of the weights; other bytes are refused. "": the digest of the first pull, which the
    store records, holds from then on."""
    max_context_tokens: int = 0
    """Most tokens of prompt and reply together; 0: the limit of the model's file."""
    chat_template: str = ""
    """Jinja source; "": the model file's."""
    stop_tokens: tuple[str, ...] = ()
    """Texts of control tokens that end a reply, besides those named in the model's file."""
    typed_markup: bool = False
    """Whether markup (`<think>`, `<tool_call>`) in messages of users, systems and tools is its
    tokens; otherwise it is text there."""
    tool_parser: str = ""
    """How it writes tool calls (outrider.reply_parsing.formats); "": as its template shows."""
    draft: str = ""
    """The model that edges draft with: a name, NO_DRAFT, or "" for the shipped draft, if one
    exists."""
    engine: EngineDefaults = field(default_factory=EngineDefaults)
    """Settings of the engine that suit it."""
    sampling: SuggestedSampling | None = None
    """Sampling that conversations begin with; None: the suggestion of the model's files."""
    embeds: bool = False
    """Whether it makes vectors of texts (docs/guides/embeddings.md), and no replies."""
    tested: bool = False
    """Whether this file was run with Outrider."""
    defined_in: str = field(default="", compare=False)
    """Origin of the definition, for messages."""

    def as_in_file(self) -> ModelSpec:
        """The same weights with the chat template and the stop tokens of their file."""
        return replace(self, chat_template="", stop_tokens=(), typed_markup=False)

    def vocabulary_key(self) -> str:
        """A key that differs if the definition changes the vocabulary of the model's file; "" if it
        does not."""
        if not (self.chat_template or self.stop_tokens or self.typed_markup):
            return ""
        changes = json.dumps([self.chat_template, sorted(set(self.stop_tokens)), self.typed_markup])
        return hashlib.sha256(changes.encode()).hexdigest()[:32]

    def engine_settings(self) -> dict[str, Any]:
        """The fields of EngineConfig that the definition sets."""
        context = {"max_context_tokens": self.max_context_tokens} if self.max_context_tokens else {}
        return {**self.engine.given(), **context}


class ModelCatalog:
    """Definitions by name. Immutable."""

    def __init__(self, specs: Iterable[ModelSpec], default: str) -> None:
        """The last of several specs with one name wins; `default` is the model of requests that
        name none. Raises ConfigError for too many models, and for a draft or a default that is not
        defined."""
        self._specs = {spec.name: spec for spec in specs}
        self._default = default
        if len(self._specs) > MAX_DEFINITIONS:
            raise ConfigError(
                f"{len(self._specs)} models are defined; keep at most {MAX_DEFINITIONS}, and "
                "remove others with: outrider models forget NAME"
            )
        for name in (default, *(spec.draft for spec in self)):
            if name not in ("", NO_DRAFT):
                self._check(name)

    def _check(self, name: str) -> None:
        if name not in self._specs:
            users = [spec for spec in self if spec.draft == name]
            whose = f"the draft of {users[0].name} ({users[0].defined_in})" if users else "default"
            raise ConfigError(
                f"the model {name!r}, {whose}, is not defined; there is {self._some_names()}"
            )

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name."""
        return tuple(self._specs)

    def lookup(self, name: str) -> ModelSpec:
        """The definition of a name; "" is the default model. Raises UnknownModelError, which lists
        the names."""
        try:
            return self._specs[name or self._default]
        except KeyError:
            raise UnknownModelError(
                f"no model is called {name[:100]!r}; use one of {self._some_names()}"
            ) from None

    def of_source(self, source: str) -> ModelSpec | None:
        """The first model whose weights come from this source, given as its canonical text."""
        return next((spec for spec in self if spec.source == source), None)

    def extended(self, specs: Iterable[ModelSpec]) -> ModelCatalog:
        """With more definitions, which win. Raises ConfigError."""
        return ModelCatalog((*self, *specs), self._default)

    def _some_names(self) -> str:
        shown = ", ".join(self.names[:_NAMES_SHOWN])
        left_out = len(self) - _NAMES_SHOWN
        return f"{shown} and {left_out} more (outrider models list)" if left_out > 0 else shown


Text: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class DefinitionsSource:
    """Origin of the tables, and functions to read what they refer to on this machine, which raise
    ConfigError."""

    name: str
    """For people: a file."""
    source_text: Text
    """The canonical text of a source."""
    template_text: Text | None = None
    """The text of a template's file; None: this place may not name files."""


def read_definitions(tables: object, place: DefinitionsSource) -> list[ModelSpec]:
    """Definitions of the tables [models.NAME] of `place`. Raises ConfigError, which names place,
    table and key, for any fault."""
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{place.name}: models must be tables; write [models.NAME]")
    if len(tables) > MAX_DEFINITIONS:
        raise ConfigError(f"{place.name}: has {len(tables)} models; keep at most {MAX_DEFINITIONS}")
    return [_Table(name, table, place).read() for name, table in tables.items()]


def check_model_name(name: str, where: str) -> str:
    """Raises ConfigError, naming `where`, for what cannot name a model."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{where}: {name[:100]!r} cannot name a model; use {_NAME_RULE}")
    if name == NO_DRAFT:
        raise ConfigError(f"{where}: a model cannot be called {NO_DRAFT!r}, which means no draft")
    return name


def slug(file: str) -> str:
    """A model's name made of the name of a file or folder, or of a source's file."""
    stem = re.split("[/#]", file.rstrip("/"))[-1].lower().removesuffix(".gguf")
    name = re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:64].rstrip("._-")
    return name if name and name != NO_DRAFT else "model"


def free_name(file: str, source: str, catalog: ModelCatalog) -> str:
    """The name of a definition made for a file or a source: the file's, with a part of the source's
    digest if that means another model."""
    name = slug(file)
    if name not in catalog.names:
        return name
    return f"{name[:55]}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def as_table(spec: ModelSpec) -> dict[str, object]:
    """The table for `read_definitions`; defaults are left out."""
    table: dict[str, object] = {"source": spec.source}
    for key in _PLAIN_KEYS:
        if value := getattr(spec, key):
            table[key] = value
    if spec.stop_tokens:
        table["stop_tokens"] = list(spec.stop_tokens)
    if given := spec.engine.given():
        table["engine"] = given
    if spec.sampling is not None:
        table["sampling"] = spec.sampling.values()
    return table


def to_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Definitions by name, as tables of a TOML file."""
    lines: list[str] = []
    for name, table in tables.items():
        # In quotes: a name may have dots, which would make tables of it.
        lines += ["", f"[models.{toml_literal(name)}]"]
        plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
        lines += [f"{key} = {toml_literal(value)}" for key, value in plain.items()]
        for key, value in table.items():
            if isinstance(value, Mapping):
                lines += [f"[models.{toml_literal(name)}.{key}]"]
                lines += [f"{entry} = {toml_literal(cell)}" for entry, cell in value.items()]
    return "\n".join([*lines[1:], ""])


class _Table:
    """One table [models.NAME]."""

    def __init__(self, name: str, table: object, place: DefinitionsSource) -> None:
        self._name = name
        self._where = f"{place.name} [models.{name[:64]}]"
        self._place = place
        if not isinstance(table, Mapping):
            raise ConfigError(f"{place.name}: models.{name[:64]} must be a table")
        self._table = table

    def read(self) -> ModelSpec:
        check_model_name(self._name, self._where)
        _check_keys(self._table, _KEYS, self._where)
        return ModelSpec(
            name=self._name,
            source=self._source(),
            sha256=self._sha256(),
            max_context_tokens=self._number("max_context_tokens", MAX_CONTEXT_TOKENS),
            chat_template=self._template(),
            stop_tokens=self._stop_tokens(),
            typed_markup=self._flag("typed_markup"),
            tool_parser=self._tool_parser(),
            draft=self._draft(),
            engine=self._engine(),
            sampling=self._sampling(),
            embeds=self._flag("embeds"),
            tested=self._flag("tested"),
            defined_in=self._place.name,
        )

    def _source(self) -> str:
        if "source" not in self._table:
            raise ConfigError(f"{self._where}: source is missing; say where the weights come from")
        source = self._text("source", MAX_SOURCE_CHARS)
        try:
            return self._place.source_text(source)
        except ConfigError as error:
            raise ConfigError(f"{self._where} source: {error.message}") from error

    def _sha256(self) -> str:
        digest = self._text("sha256", 64)
        if digest and _SHA256.fullmatch(digest) is None:
            raise self._wrong("sha256", "64 lower-case hexadecimal digits", digest)
        return digest

    def _template(self) -> str:
        file = self._text("chat_template_file", MAX_SOURCE_CHARS)
        text = self._text("chat_template", MAX_TEMPLATE_CHARS)
        if not file:
            return text
        if text:
            raise ConfigError(
                f"{self._where}: has chat_template and chat_template_file; keep one of them"
            )
        if self._place.template_text is None:
            raise ConfigError(
                f"{self._where} chat_template_file: no files can be named here; write the text as "
                "chat_template"
            )
        try:
            text = self._place.template_text(file)
        except ConfigError as error:
            raise ConfigError(f"{self._where} chat_template_file: {error.message}") from error
        if not text or len(text) > MAX_TEMPLATE_CHARS:
            raise ConfigError(
                f"{self._where} chat_template_file: {file} has {len(text)} characters; a template "
                f"has 1 to {MAX_TEMPLATE_CHARS}"
            )
        return text

    def _stop_tokens(self) -> tuple[str, ...]:
        value = self._table.get("stop_tokens", ())
        if not _is_list_of_text(value) or len(value) > MAX_STOP_TOKENS:
            raise self._wrong("stop_tokens", f"a list of at most {MAX_STOP_TOKENS} texts", value)
        for text in value:
            if not 0 < len(text) <= MAX_TOKEN_CHARS or not _is_unicode(text):
                raise self._wrong(
                    "stop_tokens", f"texts of 1 to {MAX_TOKEN_CHARS} characters", text
                )
        return tuple(value)

    def _tool_parser(self) -> str:
        name = self._text("tool_parser", 64)
        if name and name not in tuple(CallSyntax):
            raise self._wrong("tool_parser", f"one of {', '.join(CallSyntax)}", name)
        return name

    def _draft(self) -> str:
        draft = self._text("draft", 64)
        return draft if draft in ("", NO_DRAFT) else check_model_name(draft, f"{self._where} draft")

    def _engine(self) -> EngineDefaults:
        table = self._table.get("engine", {})
        where = f"{self._where} engine"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: must be a table; write [models.{self._name}.engine]")
        _check_keys(table, [entry.name for entry in fields(EngineDefaults)], where)
        precision = table.get("precision")
        if precision is not None and precision not in get_args(Precision):
            raise self._wrong(
                "engine.precision", f"one of {', '.join(get_args(Precision))}", precision
            )
        quantization = table.get("dynamic_quantization")
        if quantization is not None and not isinstance(quantization, bool):
            raise self._wrong("engine.dynamic_quantization", "true or false", quantization)
        rows = table.get("max_fixed_rows")
        if rows is not None and not _is_number(rows, MAX_FIXED_ROWS):
            raise self._wrong("engine.max_fixed_rows", f"0 to {MAX_FIXED_ROWS}", rows)
        bits = table.get("weight_bits")
        if bits is not None and (isinstance(bits, bool) or bits not in WEIGHT_BITS):
            raise self._wrong("engine.weight_bits", "4 or 8", bits)
        return EngineDefaults(precision, quantization, rows, bits)

    def _sampling(self) -> SuggestedSampling | None:
        table = self._table.get("sampling")
        where = f"{self._where} sampling"
        if table is None:
            return None
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: must be a table; write [models.{self._name}.sampling]")
        _check_keys(table, [entry.name for entry in fields(SuggestedSampling)], where)
        try:
            return SuggestedSampling(**table)
        except InvalidSamplingError as error:
            raise ConfigError(f"{where}: {error.message}") from error

    def _text(self, key: str, max_chars: int) -> str:
        value = self._table.get(key, "")
        if not isinstance(value, str) or len(value) > max_chars or not _is_unicode(value):
            raise self._wrong(key, f"a text of at most {max_chars} characters", value)
        return value

    def _number(self, key: str, most: int) -> int:
        value = self._table.get(key, 0)
        if not _is_number(value, most):
            raise self._wrong(key, f"a whole number from 0 to {most}", value)
        return value

    def _flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> ConfigError:
        return ConfigError(f"{self._where} {key}: expected {wanted}, not {repr(value)[:100]}")


_KEYS: Final = (
    *(entry.name for entry in fields(ModelSpec) if entry.name not in ("name", "defined_in")),
    "chat_template_file",
)


def _check_keys(table: Mapping[Any, object], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(str(key)[:64], known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            raise ConfigError(f"{where} {str(key)[:64]}: unknown key; {hint}")


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogate, as bytes on a command line that are no text leave."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_number(value: object, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_list_of_text(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
