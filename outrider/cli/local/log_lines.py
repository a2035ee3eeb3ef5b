"""Formats log records for people: time of day, level, event, and the rest as `key=value`. Pure.

Services write JSON, in which control characters are escaped, so that terminals do not interpret
them; they stay escaped here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

_NOT_SHOWN: Final = frozenset({"timestamp", "level", "event", "service", "exception"})
"""Fields that have their own place in a line, or are left out: the service's name is in front
already."""
_LEVEL_WIDTH: Final = len("critical")


def unchanged(line: str) -> Iterator[str]:
    """The line as it was written."""
    yield line


def readable(line: str) -> Iterator[str]:
    """A record as one line, followed by its traceback; any other line as it is."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "event" not in record:
        yield _without_controls(line)
        return
    level = _without_controls(str(record.get("level", "")))
    told = [_clock(record.get("timestamp")), level.ljust(_LEVEL_WIDTH), *_event(record)]
    yield "  ".join(filter(None, told)).rstrip()
    for text in str(record.get("exception", "")).splitlines():
        yield f"    {_without_controls(text)}"


def _event(record: Mapping[str, Any]) -> Iterator[str]:
    yield _without_controls(str(record["event"]))
    rest = (f"{key}={_value(value)}" for key, value in record.items() if key not in _NOT_SHOWN)
    yield _without_controls(" ".join(rest))


def _value(value: object) -> str:
    """Text without blanks and quotes is bare; all else is JSON."""
    if isinstance(value, str) and value and not set(value) & set(" \"'="):
        return value
    return json.dumps(value, ensure_ascii=False)


def _without_controls(text: str) -> str:
    """Printable, so that it does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else repr(it)[1:-1] for it in text)


def _clock(stamp: object) -> str:
    """`14:38:05.123` in local time; as it is written where it is no time."""
    if not isinstance(stamp, str):
        return ""
    try:
        at = datetime.fromisoformat(stamp).astimezone()
    except (ValueError, OverflowError):
        return _without_controls(stamp)
    return at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03}"
