"""JSON schemas as llguidance compiles them. Pure.

Libraries emit keywords that restrict nothing, or that say in one form what llguidance reads in
another. They are left out or rewritten here; the schema then has the same values. What remains is
not enforced: it is named by keyword and path, and refused if the request asks for `strict`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

FORMATS: Final = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
"""Formats that llguidance enforces. JSON Schema 2020-12 has all others as annotations."""
_UUIDS: Final = re.compile(r"uuid[1-8]")
"""pydantic's formats of UUIDs of one version."""
_DRAFTS: Final = "json-schema.org/"
_SCHEMA_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS: Final = ("prefixItems", "anyOf", "allOf", "oneOf")
_SCHEMA: Final = ("items", "additionalItems", "additionalProperties")
_ANNOTATIONS: Final = ("$dynamicAnchor", "contentSchema")
_TRIVIAL: Final = frozenset(
    {"title", "description", "$comment", "default", "examples", "deprecated"}
)
_IN_PLACE: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef"}
)
"""Keywords that apply further schemas to the same value."""
_ESCAPE_OR_CLASS: Final = re.compile(r"\\(?:k<|.)|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]")
_LOOK_AHEAD: Final = re.compile(r"\^\(\?=")
_LOOK_AROUND_FREE: Final[Mapping[str, str]] = {
    # A duration of ISO 8601, by zod.
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        r"^P(\d+W|(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)"
        r"(T(\d+H(\d+M)?(\d+([.,]\d+)?S)?|\d+M(\d+([.,]\d+)?S)?|\d+([.,]\d+)?S))?"
        r"|T(\d+H(\d+M)?(\d+([.,]\d+)?S)?|\d+M(\d+([.,]\d+)?S)?|\d+([.,]\d+)?S))$"
    ),
    # An address, by zod before 4.6.
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]"
        r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    ),
    # A decimal number, by pydantic.
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
}
"""Patterns of libraries with look-around that is no mere look ahead at the beginning, and patterns
that match the same texts."""


class Unenforced(NamedTuple):
    """A keyword that restricts the values of a schema and is not enforced."""

    keyword: str
    path: str
    """Where it stands, as a JSON pointer (RFC 6901) with `#` in front."""


def enforceable(schema: Mapping[str, Any]) -> tuple[Any, tuple[Unenforced, ...]]:
    """The schema without what is not enforced, and what that is. Raises RecursionError for one that
    is nested very deep."""
    reader = _Reader(schema)
    return reader.read(schema, "#"), tuple(reader.unenforced)


class _Reader:
    """Reads one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.unenforced: list[Unenforced] = []

    def read(self, schema: Any, path: str) -> Any:
        """A schema within the root, as it is enforced."""
        if not isinstance(schema, dict):
            return schema
        made = {key: it for key, it in schema.items() if key not in _ANNOTATIONS}
        for rewrite in _REWRITES:
            found = rewrite(self, made, path)
            if found is not None:
                return found
        for key in _SCHEMA:
            if isinstance(made.get(key), dict):
                made[key] = self.read(made[key], f"{path}/{key}")
        for key in (*_SCHEMAS, "items"):
            if isinstance(made.get(key), list):
                made[key] = [
                    self.read(it, f"{path}/{key}/{number}") for number, it in enumerate(made[key])
                ]
        for key in _SCHEMA_BY_NAME:
            if isinstance(made.get(key), dict):
                made[key] = {
                    name: self.read(it, f"{path}/{key}/{_escaped(name)}")
                    for name, it in made[key].items()
                }
        return made

    def _drop(self, made: dict[str, Any], path: str, keyword: str, *others: str) -> None:
        """Leave out a keyword that is not enforced, and others that belong to it."""
        self.unenforced.append(Unenforced(keyword, f"{path}/{keyword}"))
        for it in (keyword, *others):
            made.pop(it, None)

    def draft(self, made: dict[str, Any], path: str) -> None:
        """`$schema`: a dialect of JSON Schema that only adds annotations."""
        if _DRAFTS not in str(made.get("$schema", _DRAFTS)):
            del made["$schema"]

    def format(self, made: dict[str, Any], path: str) -> None:
        """`format`: unknown ones are annotations."""
        found = made.get("format")
        if isinstance(found, str) and _UUIDS.fullmatch(found):
            made["format"] = "uuid"
            made.setdefault("pattern", f"^.{{14}}{found[-1]}.{{4}}[89abAB]")
        elif found is not None and found not in FORMATS:
            del made["format"]

    def pattern(self, made: dict[str, Any], path: str) -> None:
        """`pattern`: look ahead at its beginning is another pattern for the same text."""
        found = made.get("pattern")
        if not isinstance(found, str):
            return
        patterns = without_look_around(found)
        if not patterns:
            self._drop(made, path, "pattern")
            return
        made["pattern"] = patterns[0]
        if len(patterns) > 1:
            all_of = made.get("allOf")
            more = [{"pattern": it} for it in patterns[1:]]
            made["allOf"] = [*(all_of if isinstance(all_of, list) else ()), *more]

    def pattern_properties(self, made: dict[str, Any], path: str) -> None:
        """`patternProperties`: their names are patterns as well."""
        found = made.get("patternProperties")
        if not isinstance(found, dict):
            return
        renamed: dict[str, Any] = {}
        for name, inner in found.items():
            patterns = without_look_around(name)
            if len(patterns) == 1:
                renamed[patterns[0]] = inner
            else:
                where = f"{path}/patternProperties/{_escaped(name)}"
                self.unenforced.append(Unenforced("patternProperties", where))
        made["patternProperties"] = renamed

    def property_names(self, made: dict[str, Any], path: str) -> None:
        """`propertyNames`: names are texts anyway. A list or a pattern of them stands for
        properties or patternProperties, if no property has a schema of its own."""
        found = self._resolved(made.get("propertyNames"))
        if found is None:
            return
        names = _names(found)
        if names == "":
            del made["propertyNames"]
        elif names is None or {"properties", "patternProperties"} & made.keys():
            self._drop(made, path, "propertyNames")
        else:
            del made["propertyNames"]
            value = made.get("additionalProperties", {})
            if isinstance(names, str):
                made["patternProperties"] = {names: value}
            else:
                made["properties"] = dict.fromkeys(names, value)
            made["additionalProperties"] = False

    def unique_items(self, made: dict[str, Any], path: str) -> None:
        """`uniqueItems`: of one item they always are."""
        if "uniqueItems" not in made:
            return
        most = made.get("maxItems")
        if not made["uniqueItems"] or (isinstance(most, int) and most <= 1):
            del made["uniqueItems"]
        else:
            self._drop(made, path, "uniqueItems")

    def not_(self, made: dict[str, Any], path: str) -> Any:
        """`not`: of a schema that everything fulfils it leaves nothing."""
        if "not" not in made:
            return None
        if _is_trivial(made["not"]):
            return False
        if made["not"] is False:
            del made["not"]
        else:
            self._drop(made, path, "not")
        return None

    def condition(self, made: dict[str, Any], path: str) -> None:
        """`if`: without consequence it restricts nothing, nor does a consequence without it."""
        told = [key for key in ("then", "else") if not _is_trivial(made.get(key, True))]
        if "if" in made and told:
            self._drop(made, path, "if", "then", "else")
        for key in ("if", "then", "else"):
            made.pop(key, None)

    def contains(self, made: dict[str, Any], path: str) -> None:
        """`contains`: none of them may be enough."""
        numbers = ("minContains", "maxContains")
        if "contains" in made and (made.get("minContains") != 0 or "maxContains" in made):
            self._drop(made, path, "contains", *numbers)
        for key in ("contains", *numbers):
            made.pop(key, None)

    def dependencies(self, made: dict[str, Any], path: str) -> None:
        """What depends on another property."""
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            if made.get(key):
                self._drop(made, path, key)
            made.pop(key, None)

    def unevaluated(self, made: dict[str, Any], path: str) -> None:
        """`unevaluatedProperties` and `unevaluatedItems`: the same as the keyword for additional
        ones if no other schema applies to the value."""
        for key, same in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if key not in made:
                continue
            if _is_trivial(made[key]) or same in made:
                del made[key]
            elif _IN_PLACE.isdisjoint(made):
                made[same] = made.pop(key)
            else:
                self._drop(made, path, key)

    def one_of(self, made: dict[str, Any], path: str) -> None:
        """`oneOf`: the same as `anyOf` if no value fulfils two."""
        found = made.get("oneOf")
        if not isinstance(found, list) or not found:
            return
        if not self._are_exclusive([self._resolved(it) for it in found]):
            self.unenforced.append(Unenforced("oneOf", f"{path}/oneOf"))
        del made["oneOf"]
        if "anyOf" in made:
            all_of = made.get("allOf")
            made["allOf"] = [*(all_of if isinstance(all_of, list) else ()), {"anyOf": found}]
        else:
            made["anyOf"] = found

    def dynamic_ref(self, made: dict[str, Any], path: str) -> None:
        """References that depend on where they are followed from."""
        for key in ("$dynamicRef", "$recursiveRef"):
            if key in made:
                self._drop(made, path, key)
        made.pop("$recursiveAnchor", None)

    def _resolved(self, schema: Any) -> Any:
        """A schema, or what it refers to if it is a reference alone."""
        for _ in range(8):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            found: Any = self._root
            for part in schema["$ref"].removeprefix("#").split("/")[1:]:
                name = part.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, dict) else None
            schema = found
        return schema

    def _are_exclusive(self, schemas: list[Any]) -> bool:
        if len(schemas) == 1:
            return True
        if not all(isinstance(it, dict) for it in schemas):
            return False
        if _are_disjoint([_types(it) for it in schemas]) or _are_disjoint(
            [_constants(it) for it in schemas]
        ):
            return True
        first = schemas[0].get("required")
        for name in first if isinstance(first, list) else ():
            told = [self._constants_of(it, name) for it in schemas]
            if _are_disjoint(told):
                return True
        return False

    def _constants_of(self, schema: dict[str, Any], name: str) -> frozenset[str] | None:
        """Values that a required property may have; None if it may have any."""
        required, properties = schema.get("required"), schema.get("properties")
        if not isinstance(required, list) or not isinstance(properties, dict):
            return None
        found = self._resolved(properties.get(name)) if name in required else None
        return _constants(found) if isinstance(found, dict) else None


_REWRITES: Final[tuple[Callable[[_Reader, dict[str, Any], str], Any], ...]] = (
    _Reader.not_,
    _Reader.draft,
    _Reader.format,
    _Reader.pattern,
    _Reader.property_names,
    _Reader.pattern_properties,
    _Reader.unique_items,
    _Reader.condition,
    _Reader.contains,
    _Reader.dependencies,
    _Reader.unevaluated,
    _Reader.one_of,
    _Reader.dynamic_ref,
)


def without_look_around(pattern: str) -> list[str]:
    """Regular expressions without look-around and references back, all of which a text has to match
    to match the pattern; none if there are no such."""
    pattern = _LOOK_AROUND_FREE.get(pattern, pattern)
    found = list[str]()
    while _LOOK_AHEAD.match(pattern):
        end = _end_of_group(pattern, 1)
        if end < 0 or _has_choice(pattern[end:]):
            return []
        found.append(f"^(?:{pattern[len('^(?=') : end - 1]})")
        pattern = f"^{pattern[end:]}"
    found.insert(0, pattern)
    return [] if any(map(_is_beyond, found)) else found


def _plain(pattern: str) -> str:
    """The pattern of the same length with escapes and classes blanked, but for references back."""
    return _ESCAPE_OR_CLASS.sub(
        lambda it: "\1" * len(it[0]) if re.match(r"\\[1-9k]", it[0]) else "\0" * len(it[0]), pattern
    )


def _is_beyond(pattern: str) -> bool:
    plain = _plain(pattern)
    return "\1" in plain or _LOOK_AROUND.search(plain) is not None


def _end_of_group(pattern: str, begin: int) -> int:
    """The place behind the group that begins there; -1 if it has no end."""
    depth = 0
    for at, character in enumerate(_plain(pattern)[begin:], begin):
        depth += (character == "(") - (character == ")")
        if not depth:
            return at + 1
    return -1


def _has_choice(pattern: str) -> bool:
    """Whether it is a choice of patterns, outside of groups."""
    depth = 0
    for character in _plain(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and not depth:
            return True
    return False


def _names(schema: Any) -> str | list[str] | None:
    """Names of properties that a schema allows: a list or a pattern, "" for all; None if it is
    neither."""
    if schema is True:
        return ""
    if not isinstance(schema, dict):
        return None
    rest = {key: it for key, it in schema.items() if key not in _TRIVIAL}
    if rest.pop("type", "string") != "string":
        return None
    if rest.get("format") not in FORMATS or "pattern" in rest:
        rest.pop("format", None)
    if not rest:
        return ""
    if "const" in rest:
        rest["enum"] = [rest.pop("const")]
    match list(rest.items()):
        case [("enum", list(names))] if all(isinstance(it, str) for it in names):
            return names
        case [("pattern", str(pattern))] if without_look_around(pattern) == [pattern]:
            return pattern
    least, most = rest.pop("minLength", 0), rest.pop("maxLength", "")
    return rf"^(?s:.){{{least},{most}}}$" if not rest else None


def _is_trivial(schema: Any) -> bool:
    """Whether everything fulfils it."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _TRIVIAL)


def _types(schema: dict[str, Any]) -> frozenset[str] | None:
    found = schema.get("type")
    if not isinstance(found, str | list):
        return None
    types = {found} if isinstance(found, str) else {it for it in found if isinstance(it, str)}
    return frozenset(types | {"integer"} if "number" in types else types)


def _constants(schema: dict[str, Any]) -> frozenset[str] | None:
    """The values that it lists, as texts."""
    if "const" in schema:
        return frozenset([repr(schema["const"])])
    found = schema.get("enum")
    return frozenset(map(repr, found)) if isinstance(found, list) else None


def _are_disjoint(sets: list[frozenset[str] | None]) -> bool:
    """Whether all are known, and no two have one in common."""
    known = [it for it in sets if it is not None]
    return len(known) == len(sets) and len(frozenset().union(*known)) == sum(map(len, known))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
