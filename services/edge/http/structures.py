"""Fields of other servers that ask for a structure of the reply, as `response_format` (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from outrider.errors import InvalidSamplingError
from outrider.sampling.gbnf import lark_of
from outrider.sampling.grammar import MAX_GRAMMAR_BYTES, too_long
from services.edge.http.bodies import is_given, null, read_part
from services.edge.http.openai_errors import refused

_SPECIAL: Final = frozenset(r"\.+*?()|[]{}^$#&-~")
"""Characters that mean something in a regular expression."""
_Value = TypeVar("_Value")


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's `structured_outputs`: one of the first five."""

    json: msgspec.Raw = msgspec.field(default_factory=null)
    regex: msgspec.Raw = msgspec.field(default_factory=null)
    choice: msgspec.Raw = msgspec.field(default_factory=null)
    grammar: msgspec.Raw = msgspec.field(default_factory=null)
    json_object: msgspec.Raw = msgspec.field(default_factory=null)
    structural_tag: msgspec.Raw = msgspec.field(default_factory=null)
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class TypedGrammar(msgspec.Struct, kw_only=True):
    """TGI's `grammar`."""

    type: str
    value: msgspec.Raw


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


_json: Final = _decoder(msgspec.Raw)
_text: Final = _decoder(str)
_flag: Final = _decoder(bool)
_choices: Final = _decoder(list[str])
_structured: Final = _decoder(StructuredOutputs)
_typed: Final = _decoder(TypedGrammar)


def response_format_of(name: str, value: msgspec.Raw) -> Mapping[str, Any] | None:
    """The `response_format` that the field stands for; None if it asks for nothing. Schemas are
    msgspec.Raw. Raises InvalidRequestError, which names the field."""
    return _READERS[name](name, value)


def _schema(name: str, value: msgspec.Raw) -> Mapping[str, Any]:
    if bytes(value).startswith(b'"'):
        value = read_part(_json, name, msgspec.Raw(read_part(_text, name, value).encode()))
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": value}}


def _json_object(name: str, value: msgspec.Raw) -> Mapping[str, Any] | None:
    return {"type": "json_object"} if read_part(_flag, name, value) else None


def _regex(name: str, value: msgspec.Raw) -> Mapping[str, Any]:
    return {"type": "regex", "grammar": read_part(_text, name, value)}


def _choice(name: str, value: msgspec.Raw) -> Mapping[str, Any]:
    texts: Sequence[str] = read_part(_choices, name, value)
    if not texts:
        raise refused(name, f"{name} has no choices; send at least one")
    if sum(map(len, texts)) + len(texts) - 1 > MAX_GRAMMAR_BYTES:
        raise refused(name, f"{name}: {too_long().message}")
    return {"type": "regex", "grammar": "|".join(map(_literally, texts))}


def _literally(text: str) -> str:
    return "".join("\\" + it if it in _SPECIAL else it for it in text)


def _grammar(name: str, value: msgspec.Raw) -> Mapping[str, Any] | None:
    if bytes(value).startswith(b"{"):
        typed: TypedGrammar = read_part(_typed, name, value)
        kinds = {"json": _schema, "json_schema": _schema, "regex": _regex}
        if typed.type not in kinds:
            raise refused(name, f"{name}.type is one of {', '.join(kinds)}")
        return kinds[typed.type](f"{name}.value", typed.value)
    text: str = read_part(_text, name, value)
    if not text.strip():
        return None
    if "::=" not in text:
        return {"type": "lark", "grammar": text}
    try:
        return {"type": "lark", "grammar": lark_of(text)}
    except InvalidSamplingError as error:
        raise refused(name, f"{name}: {error.message}") from None


def _format(name: str, value: msgspec.Raw) -> Mapping[str, Any] | None:
    if bytes(value).startswith(b"{"):
        return _schema(name, value)
    word = read_part(_text, name, value)
    if word not in ("", "json"):
        raise refused(name, f'{name} is "json" or a JSON schema')
    return {"type": "json_object"} if word else None


def _structured_outputs(name: str, value: msgspec.Raw) -> Mapping[str, Any] | None:
    asked: StructuredOutputs = read_part(_structured, name, value)
    for other in ("structural_tag", "disable_additional_properties", "whitespace_pattern"):
        given = getattr(asked, other)
        if is_given(given) if isinstance(given, msgspec.Raw) else given:
            raise refused(name, f"{name}.{other} is not served here; put it into the schema")
    found = [
        wanted
        for kind, read in _STRUCTURES.items()
        if is_given(raw := getattr(asked, kind)) and (wanted := read(f"{name}.{kind}", raw))
    ]
    if len(found) > 1:
        raise refused(name, f"{name} has several structures; send one")
    return found[0] if found else None


def _as_it_is(name: str, value: msgspec.Raw) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_part(_response_format, name, value)
    return found


_response_format: Final = _decoder(dict[str, msgspec.Raw])
_STRUCTURES: Final = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
_READERS: Final[Mapping[str, Callable[[str, msgspec.Raw], Mapping[str, Any] | None]]] = {
    "guided_json": _schema,
    "guided_json_object": _json_object,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "structured_outputs": _structured_outputs,
    "grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
    "format": _format,
    "response_format": _as_it_is,
}
