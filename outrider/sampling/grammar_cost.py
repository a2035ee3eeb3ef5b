"""Bounds on what is costly in a grammar's text, before anything compiles it. Pure.

llguidance bounds the compiled grammar, but not the cost of reading it. Measured with 1.9:

- rules that lead from one to the next are followed by recursion: a chain of 3,000 overflows the
  8 MB stack of a thread, and ends the process;
- so are subschemas that lead to one another by $ref: 950 of them, each a property of the one
  before, overflow it too;
- n parts of a regular expression that may each be empty, one behind the other, take time and memory
  by n squared: 20,000 characters of `.*` take 13 s and 3 GB, 500 of `\\w*` 0.1 s and 20 MB.

So lines, which every rule needs, and marks of parts that may be empty are counted wherever they
stand: distinguishing a mark from a character would need a parser. For references, the greatest
possible depth is computed. What costs too much in other ways, replicas find out by a trial
(services/inference/grammars/trial.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from outrider.errors import InvalidSamplingError

MAX_LINES: Final = 1_000
"""Most lines of a grammar in Lark."""
MAX_OPTIONAL_PARTS: Final = 500
"""Most optional parts of all regular expressions of a grammar together."""
MAX_SCHEMAS: Final = 256
"""Most JSON schemas within a grammar in Lark."""
MAX_LEVELS: Final = 1_000
"""Most levels of objects and lists in a schema whose references lead into others."""
_SCHEMA: Final = "%json"
_MOST_VISITS: Final = 100_000
"""Most visits of objects, lists and references when levels are counted; they take some 30 ms."""
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_OPTIONAL: Final = re.compile(r"[?*]|\{\s*(?:0|,)|\(\||\|\||\|\)")
"""Matches what may stand behind a part that may be empty, and choices of nothing."""


def check_lark(text: str) -> None:
    """Raises InvalidSamplingError for more lines, schemas, or parts that may be empty than are
    read."""
    num_lines = 1 + text.count("\n")
    if num_lines > MAX_LINES:
        raise InvalidSamplingError(
            f"the grammar has {num_lines} lines, at most {MAX_LINES} are read; write its rules "
            "with more choices each"
        )
    num_optional = _num_optional(text)
    for schema in _schemas(text):
        check_levels(schema)
        num_optional += _num_in_schema(schema)
    _check_optional(num_optional)


def check_regex(text: str) -> None:
    """Raises InvalidSamplingError for more parts that may be empty than are read."""
    _check_optional(_num_optional(text))


def check_schema(schema: Any) -> None:
    """Check the regular expressions of a JSON schema, in Python's form (in `pattern`,
    `patternProperties` and the options of `x-guidance`), and the depth of its references. Raises
    InvalidSamplingError."""
    check_levels(schema)
    _check_optional(_num_in_schema(schema))


def check_levels(schema: Any) -> None:
    """Raises InvalidSamplingError if a schema's references may lead too deep, assuming a path
    through all connected ones, each once."""
    outer, inner, targets = _Levels(schema), dict[str, _Levels](), dict[int, _Levels]()
    num_visits = 0
    for reference in outer.references:
        target = _target(schema, reference)
        levels = targets.get(id(target))  # many may lead to one
        if levels is None:
            levels = targets[id(target)] = _Levels(target)
            num_visits += levels.num_visits
        inner[reference] = levels
        num_visits += 10 * len(levels.references)
        if num_visits > _MOST_VISITS:
            raise InvalidSamplingError("the schema has too many connected $ref; use fewer")
    num = outer.num + max(
        (sum(inner[it].num for it in one) for one in _connected(inner)), default=0
    )
    if num > MAX_LEVELS:
        raise InvalidSamplingError(
            f"the $refs of the schema may lead through {num} objects and lists within one another, "
            f"at most {MAX_LEVELS} are read; use fewer, or put some schemas where they are named"
        )


class _Levels:
    """Depth of a value without following references, and its references."""

    def __init__(self, value: Any) -> None:
        self.num = 0
        self.num_visits = 0
        """Objects and lists that it has, as far as they were looked at."""
        references = dict[str, None]()
        level = [value]
        while level and self.num <= MAX_LEVELS:
            self.num += 1
            self.num_visits += len(level)
            inner: list[Any] = []
            for one in level:
                if isinstance(one, dict):
                    reference = one.get("$ref")
                    if isinstance(reference, str):
                        references[reference] = None
                    inner += one.values()
                elif isinstance(one, list):
                    inner += one
            level = [one for one in inner if isinstance(one, dict | list)]
        self.references = tuple(references)


def _target(schema: Any, reference: str) -> Any:
    """Target of a JSON pointer (RFC 6901); the whole schema for other kinds of reference."""
    found = schema
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            return schema
    return found


def _connected(inner: Mapping[str, _Levels]) -> list[list[str]]:
    """References by their connection: each leads to others of its list, or is led to."""
    neighbours: dict[str, list[str]] = {reference: [] for reference in inner}
    for reference, levels in inner.items():
        for other in levels.references:
            neighbours[reference].append(other)
            neighbours[other].append(reference)
    found: list[list[str]] = []
    seen = set[str]()
    for begin in inner:
        group, rest = [], [begin]
        while rest:
            reference = rest.pop()
            if reference not in seen:
                seen.add(reference)
                group.append(reference)
                rest += neighbours[reference]
        found.append(group)
    return found


def _schemas(text: str) -> Iterator[Any]:
    """JSON schemas within a grammar in Lark; they are parsed, since their characters may be
    escaped."""
    at = 0
    for _ in range(MAX_SCHEMAS + 1):
        at = text.find(_SCHEMA, at)
        if at < 0:
            return
        at += len(_SCHEMA)
        at += len(text) - at - len(text[at:].lstrip())
        try:
            schema, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            raise InvalidSamplingError(
                f"the grammar has no valid JSON behind {_SCHEMA}; send an object there"
            ) from None
        yield schema
    raise InvalidSamplingError(
        f"the grammar has more than {MAX_SCHEMAS} schemas; put some of them into one anyOf"
    )


def _num_in_schema(schema: Any) -> int:
    num, rest = 0, [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
            num += sum(map(_num_optional, _expressions(value)))
    return num


def _expressions(schema: dict[str, Any]) -> list[str]:
    found = [schema.get("pattern")]
    options, named = schema.get("x-guidance"), schema.get("patternProperties")
    if isinstance(options, dict):
        found.append(options.get("whitespace_pattern"))
    if isinstance(named, dict):
        found += named
    return [text for text in found if isinstance(text, str)]


def _num_optional(text: str) -> int:
    return sum(1 for _ in _OPTIONAL.finditer(_ESCAPED.sub(".", text)))


def _check_optional(num: int) -> None:
    if num > MAX_OPTIONAL_PARTS:
        raise InvalidSamplingError(
            f"the expressions of the grammar have {num} parts that may be empty, at most "
            f"{MAX_OPTIONAL_PARTS} are read; write repetitions as {{m,n}}"
        )
