"""What was said before, as calls and results of functions, which chat templates show (pure).

A client can only repeat it: calls of tools that are not run here, their results, and calls that a
length limit cut off are rendered as well as the template can, and never refused.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from outrider.models.tools import ToolCall
from services.edge.http.bodies import is_given

_OPAQUE: Final = frozenset(
    {"encrypted_content", "encrypted_index", "signature", "image_url", "file_data", "b64_json"}
)
"""Members that only the API which made them can read, and files."""
_MAX_READ_BYTES: Final = 64 << 10
"""Longest JSON that is looked into; to read a megabyte would hold the event loop for 100 ms."""


def arguments_in(given: msgspec.Raw) -> str:
    """ToolCall.arguments: most APIs write them as text, some as an object."""
    return _as_text(given) if is_given(given) else ""


def call_with_input(call_id: str, name: str, member: str, value: msgspec.Raw) -> ToolCall:
    """A call of a tool whose input need not be an object: another is this member of one."""
    data = bytes(value).decode()
    return ToolCall(call_id, name, data if data.startswith("{") else f'{{"{member}": {data}}}')


def result_in(given: msgspec.Raw) -> str:
    """A tool's result of any shape as text: text as it is, several texts as lines, other JSON as
    JSON without what only the API that made it can read."""
    data = bytes(given)
    if data.startswith(b'"') or len(data) > _MAX_READ_BYTES:
        return _as_text(given)
    try:
        return _told(json.loads(data))
    except (ValueError, RecursionError):  # a number too long, or nested too deep
        return data.decode()


def _told(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [it.get("text") for it in parts if isinstance(it, dict)]
    lines = [it for it in texts if isinstance(it, str)]
    if value is None or len(lines) == len(parts):
        return "\n".join(lines)
    return json.dumps(_readable(value), ensure_ascii=False)


def _as_text(given: msgspec.Raw) -> str:
    """The text that a JSON string stands for; other JSON as it is written."""
    data = bytes(given)
    if data.startswith(b'"'):
        try:
            return msgspec.json.decode(data, type=str)
        except msgspec.MsgspecError:  # half a surrogate pair
            pass
    return data.decode()


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(it) for it in value]
    if not isinstance(value, dict):
        return value
    opaque = _OPAQUE | {"data"} if value.get("type") == "base64" else _OPAQUE
    return {key: _readable(it) for key, it in value.items() if key not in opaque}
