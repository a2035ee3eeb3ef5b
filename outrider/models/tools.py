"""Tools that a model may call, as chats name them, and its calls. Pure.

A definition travels as one canonical JSON text: name, description and parameters in this order, the
parameters as the client wrote them (a chat template shows them in that order), without spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from outrider.errors import InvalidRequestError

MAX_TOOLS: Final = 128
MAX_TOOLS_CHARS: Final = 1 << 18
"""Characters of all definitions together. The edge parses them in its event loop: 3 ms."""
MAX_DEPTH: Final = 48
"""Objects and lists within one another, in parameters and arguments."""
AUTO: Final = "auto"
"""The model decides whether it calls a tool."""
NONE: Final = "none"
"""Tool choice: the prompt does not mention the tools."""
REQUIRED: Final = "required"
"""The model calls at least one tool."""
_CHOICES: Final = (AUTO, NONE, REQUIRED)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAME_RULE: Final = "1 to 128 letters, digits, '_', '.' and '-'"
_KEYS: Final = ("name", "description", "parameters", "return")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model made."""

    id: str
    """Under which the tool's result refers to it."""
    name: str
    """Name of the tool."""
    arguments: str = ""
    """A JSON object, as the model wrote it; empty: one without members. In earlier turns any text:
    a call may have been cut off."""

    @property
    def num_chars(self) -> int:
        """Characters of id, name and arguments."""
        return len(self.id) + len(self.name) + len(self.arguments)


class UnreadArguments(str):
    """Arguments of an earlier call that are no JSON object. A template that writes arguments as
    JSON writes this text as it is."""

    __slots__ = ()


def tool_text(tool: Mapping[str, Any] | str) -> str:
    """Canonical text of a tool definition. `tool` is a mapping or JSON text, either {"name",
    "description", "parameters"} or OpenAI's {"type": "function", "function": {...}}. `strict` is
    left out: it is for the API, not the model. Raises InvalidRequestError."""
    return _named_text(tool)[1]


def described(tools: Sequence[str]) -> tuple[str, ...]:
    """Canonical texts with an empty description where they have none."""
    return tuple(tool_text({"description": "", **json.loads(text)}) for text in tools)


def _named_text(tool: Mapping[str, Any] | str) -> tuple[str, str]:
    """Name and canonical text."""
    found = _parsed(tool) if isinstance(tool, str) else tool
    if not isinstance(found, Mapping):
        raise InvalidRequestError("a tool is a JSON object with name, description and parameters")
    if "function" in found:
        if found.get("type", "function") != "function" or not isinstance(
            found["function"], Mapping
        ):
            raise InvalidRequestError(
                'a tool of this shape is {"type": "function", "function": {"name": ...}}'
            )
        found = {key: value for key, value in found["function"].items() if key != "strict"}
    _check_definition(found)
    ordered = {key: found[key] for key in _KEYS if found.get(key) is not None}
    try:
        text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"tool {found['name']} is no JSON: {error}") from error
    if len(text) > MAX_TOOLS_CHARS:
        raise InvalidRequestError(
            f"tool {found['name']} has {len(text)} characters; all together may have "
            f"{MAX_TOOLS_CHARS}"
        )
    return found["name"], text


def check_tools(tools: Sequence[str]) -> tuple[str, ...]:
    """The canonical texts of definitions of unknown origin. Raises InvalidRequestError for too
    many, too long ones, two of one name, and what `tool_text` raises."""
    check_num_tools(len(tools))
    _check_chars(tools)
    texts: dict[str, str] = {}
    for name, text in map(_named_text, tools):
        if name in texts:
            raise InvalidRequestError(f"tool {name} is defined twice; give each its own name")
        texts[name] = text
    _check_chars(texts.values())  # a number may have become longer
    return tuple(texts.values())


def _check_chars(tools: Iterable[str]) -> None:
    num_chars = sum(map(len, tools))
    if num_chars > MAX_TOOLS_CHARS:
        raise InvalidRequestError(
            f"the tools have {num_chars} characters; send at most {MAX_TOOLS_CHARS}"
        )


def check_num_tools(count: int) -> None:
    """Raises InvalidRequestError for more tools than may be, before each costs."""
    if count > MAX_TOOLS:
        raise InvalidRequestError(f"the chat has {count} tools; send at most {MAX_TOOLS}")


def check_choice(choice: str, tools: Sequence[str]) -> str:
    """One of auto, none, required, or the name of one of the tools; "" is auto. Raises
    InvalidRequestError."""
    if not choice or choice in (AUTO, NONE):
        return choice or AUTO
    if not tools:
        raise _no_choice(f"is {choice[:64]!r}, but the chat has no tools; send them as well")
    if choice != REQUIRED and choice not in map(tool_name, tools):
        raise _no_choice(f"{choice[:64]!r} is neither auto, none, required nor one of the tools")
    return choice


def _no_choice(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"tool_choice {why}", metadata={"param": "tool_choice"})


def only_tools(names: Collection[str], tools: Sequence[str]) -> tuple[str, ...]:
    """Those of the tools that have these names. Raises InvalidRequestError for a name that none
    has."""
    found = {tool_name(text): text for text in tools}
    for name in names:
        if name not in found:
            raise _no_choice(f"allows {name[:64]!r}, which is none of the tools")
    return tuple(text for name, text in found.items() if name in names)


def tool_name(text: str) -> str:
    """The name in a canonical text."""
    name: str = json.loads(text)["name"]
    return name


def read_arguments(call: ToolCall) -> dict[str, Any] | UnreadArguments:
    """The arguments of a call as templates get them."""
    try:
        found = _parsed(call.arguments) if call.arguments.strip() else {}
        _check_depth(found, "the arguments")
    except InvalidRequestError:
        found = None
    return found if isinstance(found, dict) else UnreadArguments(call.arguments)


def _check_definition(found: Mapping[str, Any]) -> None:
    name = found.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"a tool has the name {str(name)[:64]!r}; a tool's name has {_NAME_RULE}"
        )
    if name in _CHOICES:
        raise InvalidRequestError(f"no tool can be called {name}, which is a tool_choice")
    for key in found:
        if key not in _KEYS:
            raise InvalidRequestError(
                f"tool {name} has {str(key)[:64]!r}; a definition has name, description and "
                "parameters"
            )
    if not isinstance(found.get("description") or "", str):
        raise InvalidRequestError(f"tool {name}: its description is no text")
    for key in ("parameters", "return"):
        if not isinstance(found.get(key) or {}, Mapping):
            raise InvalidRequestError(f"tool {name}: {key} is no JSON schema, which is an object")
        _check_depth(found.get(key), f"tool {name}")
    if (found.get("parameters") or {}).get("type", "object") != "object":
        raise InvalidRequestError(f"tool {name}: its parameters are no object; give them names")


def _check_depth(value: Any, whose: str) -> None:
    """Raises InvalidRequestError for JSON that is nested too deeply."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise InvalidRequestError(f"{whose}: nested more than {MAX_DEPTH} deep; flatten it")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
        level = inner


def _parsed(text: str) -> Any:
    try:
        # A lone surrogate may stand in it as \ud800.
        found = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the JSON of a tool or its arguments cannot be read: {type(error).__name__}; send "
            "valid JSON"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
