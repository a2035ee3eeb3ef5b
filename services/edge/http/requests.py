"""Requests for text: the struct of their API, and what becomes of all other fields (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from outrider.errors import InvalidRequestError
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
    Door.RESPONSES: {
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        FORMAT: "text.format",
    },
    Door.MESSAGES: {
        "stop": "stop_sequences",
        "reasoning_effort": "output_config.effort",
        "user": "metadata.user_id",
        FORMAT: "output_config.format",
    },
}
"""Names of fields that chat completions have by another name; `a.b` is the member b of a."""
_Body = TypeVar("_Body", bound=msgspec.Struct, covariant=True)
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class ReadRequest(Generic[_Body]):
    """A request as it was read."""

    body: _Body
    names: Mapping[str, str]
    """What errors call fields: names of the API, or those that were sent in their place, by the
    fields' names in chat completions, where they differ."""
    passed_over: PassedOver


class RequestReader(Generic[_Body]):
    """Reads the requests of one route."""

    def __init__(
        self, door: Door, body: type[_Body], known: type[msgspec.Struct] | None = None
    ) -> None:
        """`known`: a struct whose fields may stand in the request, if not `body`."""
        self._own_names = OWN_NAMES.get(door, {})
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
        if not mapped:
            return ReadRequest(read(self._decode, data), self._own_names, passed_over)
        data, sent = self._rewritten(data, mapped)
        try:
            body = read(self._decode, data)
        except InvalidRequestError as error:
            raise self._as_sent(error, sent) from None
        return ReadRequest(body, {**self._own_names, **sent}, passed_over)

    def _own(self, name: str) -> str:
        """The API's name of a field of chat completions."""
        return self._own_names.get(name, name)

    def _as_sent(self, error: InvalidRequestError, sent: Mapping[str, str]) -> InvalidRequestError:
        """The error with the name that the field was sent by."""
        where = error.metadata.get("param", "")
        for name, it in sent.items():
            if where == self._own(name):
                return refused(it, it + error.message.removeprefix(where))
        return error

    def _mapped(self, data: bytes, passed_over: PassedOver) -> dict[str, Raw]:
        """The fields that become others. Raises InvalidRequestError for those that are refused."""
        mapped = dict[str, Raw]()
        for name, value in self._given(data, passed_over).items():
            field = self._listed.get(name)
            if name not in self._names:
                if is_given(value):
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

    def _rewritten(self, data: bytes, mapped: Mapping[str, Raw]) -> tuple[bytes, dict[str, str]]:
        """The body with its fields by the names that the API has, and the names they were sent by,
        by those of chat completions."""
        fields = read(_members, data)
        sent = dict[str, str]()
        for name in mapped:
            del fields[name]
        for name, value in mapped.items():
            to = self._listed[name].to
            own = self._own(to)
            if to == FORMAT:
                wanted = response_format_of(name, value)
                if not wanted:
                    continue
                is_flat = own != FORMAT
                value = Raw(msgspec.json.encode(_flat(wanted) if is_flat else wanted))
            elif own == "stop_sequences" and bytes(value).startswith(b'"'):
                value = Raw(b"[%b]" % bytes(value))
            if to in sent:
                raise refused(name, f"{name} and {sent[to]} are one field; send one of them")
            if not _put(fields, own, value):
                raise refused(name, f"{name} and {own} are one field; send one of them")
            sent[to] = name
        return msgspec.json.encode(fields), sent


def _put(fields: dict[str, Raw], own: str, value: Raw) -> bool:
    """Give the field `own`, or `own` as a member of one, this value. False if it has one, other
    than the format of plain text. Raises InvalidRequestError."""
    outer, _, member = own.partition(".")
    given = fields.get(outer, null())
    if not member:
        fields[outer] = value
        return not is_given(given) or _is_plain_text(given)
    members = read_part(_members, outer, given) if is_given(given) else {}
    had = members.get(member, null())
    members[member] = value
    fields[outer] = Raw(msgspec.json.encode(members))
    return not is_given(had) or _is_plain_text(had)


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


def _is_plain_text(value: Raw) -> bool:
    if memoryview(value).nbytes > _MAX_NEUTRAL_BYTES:
        return False
    return bool(json.loads(bytes(value)) == {"type": "text"})


def _flat(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A `response_format` as APIs write it that have no member json_schema."""
    named = wanted.get("json_schema")
    if named is None:
        return dict(wanted)
    if isinstance(named, Raw):
        named = read_part(_members, f"{FORMAT}.json_schema", named)
    rest = {name: value for name, value in wanted.items() if name != "json_schema"}
    return {**rest, **named}
