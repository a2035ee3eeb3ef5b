"""Requests for text: the struct of their API, and what becomes of all other fields (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from services.edge.http.bodies import is_given, null, read, read_part
from services.edge.http.fields import FORMAT, Door, Field, Outcome, listed
from services.edge.http.openai_errors import refused
from services.edge.http.passed_over import UNLISTED, PassedOver
from services.edge.http.structures import response_format_of

_MAX_NEUTRAL_BYTES: Final = 64
_MAX_UNLISTED_BYTES: Final = 16 << 10
"""Longest rest of a body in which names are looked for: two megabytes of small fields would hold
the event loop for 50 ms."""
_OPTIONS: Final = "options"
"""Ollama's: its members count as fields of the request."""
OWN_NAMES: Final[Mapping[Door, Mapping[str, str]]] = {
    Door.RESPONSES: {"max_tokens": "max_output_tokens"},
    Door.MESSAGES: {"stop": "stop_sequences"},
}
"""Names of fields that chat completions have by another name."""
FORMATS: Final[Mapping[Door, tuple[str, str]]] = {
    Door.RESPONSES: ("text", "format"),
    Door.MESSAGES: ("output_config", "format"),
}
"""Where a request names the format of its reply, if not in `response_format`: a field, and its
member."""
_Body = TypeVar("_Body", bound=msgspec.Struct)
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class ReadRequest(Generic[_Body]):
    """A request as it was read."""

    body: _Body
    format_field: str
    """The field that an error about the format of the reply blames; empty: the API's own."""
    passed_over: PassedOver


class RequestReader(Generic[_Body]):
    """Reads the requests of one route."""

    def __init__(
        self, door: Door, body: type[_Body], known: type[msgspec.Struct] | None = None
    ) -> None:
        """`known`: a struct whose fields may stand in the request, if not `body`."""
        self._door = door
        self._listed = listed(door)
        self._decode = msgspec.json.Decoder(body).decode
        self._names = frozenset({*self._listed, *(known or body).__struct_encode_fields__})
        fields: list[tuple[str, Any, Any]] = [(it, Raw | UnsetType, UNSET) for it in self._names]
        self._look = msgspec.json.Decoder(msgspec.defstruct("Fields", fields)).decode

    def read(self, data: bytes) -> ReadRequest[_Body]:
        """Raises InvalidRequestError for fields that are refused or of the wrong type, and for two
        that stand for the same."""
        passed_over = PassedOver()
        mapped = self._mapped(data, passed_over)
        if _OPTIONS in mapped:
            return self.read(_spread(data))
        format_field = ""
        if mapped:
            data, format_field = self._rewritten(data, mapped)
        return ReadRequest(read(self._decode, data), format_field, passed_over)

    def _mapped(self, data: bytes, passed_over: PassedOver) -> dict[str, Raw]:
        """The fields that become others. Raises InvalidRequestError for those that are refused."""
        mapped = dict[str, Raw]()
        for name, value in self._given(data, passed_over).items():
            field = self._listed.get(name)
            if name not in self._names:
                passed_over.add_unlisted(name)
            elif field is None or field.outcome is Outcome.NO_EFFECT or not _asks(field, value):
                continue
            elif field.outcome is Outcome.REFUSED:
                raise refused(name, f"{name} is not served here; {field.instead}")
            elif field.outcome is Outcome.PASSED_OVER:
                passed_over.add(name)
            else:
                mapped[name] = value
        return mapped

    def _given(self, data: bytes, passed_over: PassedOver) -> dict[str, Raw]:
        """The fields of a request; of one with very many, those that are known."""
        if len(data) > _MAX_UNLISTED_BYTES:
            found = read(self._look, data)
            known = {name: getattr(found, name) for name in self._names}
            given = {name: it for name, it in known.items() if not isinstance(it, UnsetType)}
            num_bytes = sum(len(name) + memoryview(it).nbytes for name, it in given.items())
            if len(data) - num_bytes > _MAX_UNLISTED_BYTES:
                passed_over.add(UNLISTED)
                return given
        return read(_members, data)

    def _rewritten(self, data: bytes, mapped: Mapping[str, Raw]) -> tuple[bytes, str]:
        """The body with its fields by the names that the API has, and the field that names the
        format."""
        fields = read(_members, data)
        format_field = ""
        for name in mapped:
            del fields[name]
        for name, value in mapped.items():
            to = self._listed[name].to
            if to != FORMAT:
                own = OWN_NAMES.get(self._door, {}).get(to, to)
                if is_given(fields.get(own, null())):
                    raise refused(name, f"{name} and {own} are one field; send one of them")
                is_one = own == "stop_sequences" and bytes(value).startswith(b'"')
                fields[own] = Raw(b"[%b]" % bytes(value)) if is_one else value
            elif wanted := response_format_of(name, value):
                if format_field:
                    raise refused(name, f"{name} and {format_field} both ask for a structure")
                self._put_format(fields, name, wanted)
                format_field = name
        return msgspec.json.encode(fields), format_field

    def _put_format(self, fields: dict[str, Raw], name: str, wanted: Mapping[str, Any]) -> None:
        field, member = FORMATS.get(self._door, (FORMAT, ""))
        outer = {FORMAT: fields.get(FORMAT, null())}
        if member:
            given = fields.get(field, null())
            outer = read_part(_members, field, given) if is_given(given) else {}
        if _is_structure(outer.get(member or FORMAT, null())):
            raise refused(name, f"{name} and {field} both ask for a structure; send one of them")
        if not member:
            fields[FORMAT] = Raw(msgspec.json.encode(wanted))
            return
        outer[member] = Raw(msgspec.json.encode(_flat(wanted)))
        fields[field] = Raw(msgspec.json.encode(outer))


def _asks(field: Field, value: Raw) -> bool:
    """Whether a field with this value asks for anything."""
    data = bytes(value) if memoryview(value).nbytes <= _MAX_NEUTRAL_BYTES else b"{}"
    return is_given(Raw(data)) and json.loads(data) not in field.neutral


def _spread(data: bytes) -> bytes:
    """The body with the members of `options` among its fields."""
    fields = read(_members, data)
    options = read_part(_members, _OPTIONS, fields.pop(_OPTIONS))
    for name, value in options.items():
        if name == _OPTIONS or is_given(fields.get(name, null())):
            raise refused(f"{_OPTIONS}.{name}", f"{name} stands in {_OPTIONS} and beside it")
        fields[name] = value
    return msgspec.json.encode(fields)


def _is_structure(value: Raw) -> bool:
    if not is_given(value):
        return False
    return memoryview(value).nbytes > _MAX_NEUTRAL_BYTES or json.loads(bytes(value)) != {
        "type": "text"
    }


def _flat(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A `response_format` as APIs write it that have no member json_schema."""
    named = wanted.get("json_schema")
    if named is None:
        return dict(wanted)
    if isinstance(named, Raw):
        named = read_part(_members, f"{FORMAT}.json_schema", named)
    rest = {name: value for name, value in wanted.items() if name != "json_schema"}
    return {**rest, **named}
