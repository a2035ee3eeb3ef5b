"""Bodies of requests: JSON, parsed into an API's msgspec struct (pure).

Structs of which a body may have ten thousands are made with `gc=False`: JSON has no cycles, and
otherwise parsing would trigger collections that look at all of the edge's objects again and again.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from outrider.errors import InvalidRequestError
from outrider.sampling.grammar import MAX_GRAMMAR_BYTES
from services.edge.http.openai_errors import refused

MAX_SCHEMA_BYTES: Final = 4 * MAX_GRAMMAR_BYTES
"""Longest schema as written in a body, with its whitespace; without it, the limit is a quarter of
this."""
_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`$")
_Body = TypeVar("_Body")


def read(decode: Callable[[bytes], _Body], data: bytes) -> _Body:
    """Parse a request's body with `decode`, of a msgspec decoder. A byte order mark before it is
    ignored (RFC 8259, section 8.1). Raises InvalidRequestError, which quotes nothing of the
    body."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        # The decoder leaves alone what it skips, and the fields that are msgspec.Raw.
        str(data, "utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not UTF-8; encode the JSON in UTF-8") from None
    try:
        return decode(data)
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply; send simpler JSON") from None
    except msgspec.ValidationError as error:
        raise _misshapen(str(error)) from None
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None


def null() -> msgspec.Raw:
    """JSON of any shape, where none was given."""
    return msgspec.Raw(b"null")


def is_given(field: msgspec.Raw) -> bool:
    """Whether the field is present and not null."""
    return bytes(field) != b"null"


def schema_in(param: str, field: msgspec.Raw) -> Any:
    """The JSON of a field that has a schema in it. Raises InvalidRequestError, for one that is
    longer than any schema may be before it costs anything: to read two megabytes of small values
    would hold the event loop for a quarter of a second."""
    data = bytes(field)
    if len(data) > MAX_SCHEMA_BYTES:
        raise refused(
            param, f"{param} has {len(data)} bytes; send a schema of at most {MAX_SCHEMA_BYTES}"
        )
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise refused(param, "the schema cannot be read; send simpler JSON") from None


def read_part(decode: Callable[[bytes], _Body], where: str, data: msgspec.Raw) -> _Body:
    """Parse a part of a body that was read, which is at `where`. Raises InvalidRequestError."""
    try:
        return decode(bytes(data))
    except RecursionError:
        raise refused(where, f"{where} is nested too deeply; send simpler JSON") from None
    except msgspec.ValidationError as error:
        raise _misshapen(str(error), where) from None
    except msgspec.MsgspecError as error:
        raise refused(where, f"{where} is not valid JSON: {error}") from None


def _misshapen(text: str, within: str = "") -> InvalidRequestError:
    """The error for JSON of the wrong structure; `text` is msgspec's message."""
    path = _PATH.search(text)
    where = within + (path.group(1) if path else "")
    what = text[: path.start()] if path else text
    if missing := _MISSING.match(what):
        field = f"{where}.{missing.group(1)}".removeprefix(".")
        return refused(field, f"{field} is missing, and has to be given")
    if not where:
        return InvalidRequestError(f"the body has the wrong structure: {what}")
    return refused(where, f"{where}: {what}")
