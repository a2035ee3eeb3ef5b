"""Bodies of requests: JSON, read into an API's msgspec struct (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from outrider.errors import InvalidRequestError
from services.edge.http.openai_errors import refused

_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")
_Body = TypeVar("_Body")


def read(decode: Callable[[bytes], _Body], data: bytes) -> _Body:
    """A request's body; `decode`: a msgspec decoder's. Raises InvalidRequestError, which says
    nothing of what the body holds."""
    try:
        # The decoder leaves alone what it skips, and the fields that are msgspec.Raw.
        str(data, "utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not UTF-8; encode the JSON so") from None
    try:
        return decode(data)
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply; send simpler JSON") from None
    except msgspec.ValidationError as error:
        raise _misshapen(str(error)) from None
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None


def _misshapen(text: str) -> InvalidRequestError:
    """For JSON that is not of the shape that is asked for; `text`: what msgspec says."""
    path = _PATH.search(text)
    if path is None:
        return InvalidRequestError(f"the body is not what it has to be: {text}")
    where = path.group(1)
    return refused(where, f"{where or 'the body'}: {text[: path.start()]}")
