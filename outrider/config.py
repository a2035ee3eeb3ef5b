"""One frozen dataclass per service, filled from defaults < TOML file < environment < flags.

    config = load(RouterConfig, "router", file=Path("outrider.toml"), flags={"port": 7100})

reads table `[router]` of the file and the variables `OUTRIDER_ROUTER_<FIELD>`. A field may be
str, int, float, bool, Path, `tuple[str, ...]`, `X | None`, a dataclass (a table), or a tuple of
dataclasses, which only the file can give (an array of tables). Field `near_ms` of table
`placement` is `OUTRIDER_ROUTER_PLACEMENT_NEAR_MS` in the environment and `placement.near_ms` among
the flags. In the environment a tuple is comma-separated and an empty value means None where None is
allowed. Every failure is a ConfigError that names the source.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from outrider.errors import ConfigError

T = TypeVar("T")

MIN_MESSAGE_BYTES: Final = 64 * 1024
"""Least limit for the size of a received gRPC message. Frames larger than half of it travel in a
message of their own."""

_BOOLS = {"true": True, "1": True, "yes": True, "on": True}
_BOOLS |= {"false": False, "0": False, "no": False, "off": False}


def load(
    cls: type[T],
    section: str,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> T:
    """Build `cls` for `section`; a flag of None counts as not given, text is read as in the
    environment.

    Raises ConfigError for an unreadable file, an unknown key (naming the nearest known one), a
    value of the wrong type, a required field without value, and whatever `cls` itself rejects.
    """
    kinds = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for key, value in _file_table(file, section).items():
        where = f"{file} [{section}] {key}"
        values[key] = _convert(value, _kind(kinds, key, where), where)
    entries: dict[str, dict[str, object]] = {}
    """Values of nested tables, by field and key."""
    for key, text in _environment(section, os.environ if environ is None else environ).items():
        where = f"environment variable OUTRIDER_{section.upper()}_{key.upper()}"
        if (table := _table_key(kinds, key, "_")) is not None:
            kind = _kind(typing.get_type_hints(table.kind), table.key, where)
            entries.setdefault(table.name, {})[table.key] = _parse(text, kind, where)
        else:
            values[key] = _parse(text, _kind(kinds, key, where), where)
    for key, value in (flags or {}).items():
        if value is None:
            continue
        where = f"flag {key}"
        if (table := _table_key(kinds, key, ".")) is not None:
            kind = _kind(typing.get_type_hints(table.kind), table.key, where)
            entries.setdefault(table.name, {})[table.key] = _flag(value, kind, where)
        else:
            values[key] = _flag(value, _kind(kinds, key, where), where)
    for name, given in entries.items():
        before = values.get(name, _default(cls, name))
        where = f"configuration of {section}.{name}"
        values[name] = (
            _build(_table_class(kinds[name]), given, where)
            if before is None
            else dataclasses.replace(before, **given)  # type: ignore[type-var]
        )
    return _build(cls, values, f"configuration of {section}")


def from_text(cls: type[object], key: str, text: str, where: str) -> object:
    """The value of one key of `cls`, or `table.key`, out of text as it stands in the environment.
    Raises ConfigError, which names `where` it stood."""
    kinds = typing.get_type_hints(cls)
    if (table := _table_key(kinds, key, ".")) is not None:
        return from_text(table.kind, table.key, text, where)
    return _parse(text, _kind(kinds, key, where), where)


def check_address(address: str, where: str) -> None:
    """Raises ConfigError, naming the key `where`, unless `address` is host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{where} must be host:port, not {address!r}")


def check_message_bytes(num_bytes: int) -> None:
    """Raises ConfigError for a limit of received messages that peers do not know to keep."""
    if num_bytes < MIN_MESSAGE_BYTES:
        raise ConfigError(
            f"max_message_bytes is {num_bytes}; set it to {MIN_MESSAGE_BYTES} or more, as peers "
            "put that much into one message"
        )


def toml_literal(value: object) -> str:
    """A value as written behind the `=` in a TOML file. Anything but a number, boolean, list or
    table becomes a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_literal(it)}" for key, it in value.items()) + "}"
    # Of a JSON string's escapes TOML lacks none but the solidus, which json never writes.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _file_table(file: Path | None, section: str) -> Mapping[str, object]:
    if file is None:
        return {}
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    if section not in document:
        there = ", ".join(document) or "nothing"
        raise ConfigError(f"{file} has no table [{section}], only {there}; write [{section}] first")
    table = document[section]
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {section} must be a table, write [{section}]")
    return table


def _environment(section: str, environ: Mapping[str, str]) -> dict[str, str]:
    prefix = f"OUTRIDER_{section.upper()}_"
    return {
        name[len(prefix) :].lower(): text
        for name, text in environ.items()
        if name.startswith(prefix)
    }


class _TableKey(NamedTuple):
    """A key of a table that is itself a field."""

    name: str
    """Name of the field that is the table."""
    kind: type[object]
    key: str


def _table_key(kinds: Mapping[str, object], key: str, separator: str) -> _TableKey | None:
    """The table and its key that `key` means, if it is `<field><separator><key of the table>`."""
    if key in kinds:
        return None
    for name, kind in kinds.items():
        if _is_table(kind) and key.startswith(name + separator):
            return _TableKey(name, _table_class(kind), key[len(name) + len(separator) :])
    return None


def _is_table(kind: object) -> bool:
    inner = _without_none(kind)
    return dataclasses.is_dataclass(inner) and isinstance(inner, type)


def _table_class(kind: object) -> type[object]:
    inner = _without_none(kind)
    assert isinstance(inner, type), "the kind of a table is its dataclass"
    return inner


def _default(cls: type[object], name: str) -> object:
    """The default of a field; None if it has none."""
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name == name and field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.name == name and field.default is not dataclasses.MISSING:
            return field.default
    return None


def _kind(kinds: Mapping[str, object], key: str, where: str) -> object:
    if key in kinds:
        return kinds[key]
    raise ConfigError(f"{where}: unknown key{_nearest(key, kinds)}")


def _nearest(key: str, kinds: Mapping[str, object]) -> str:
    """A hint at the key that may be meant: of the tables too, where one has a key of this name."""
    in_tables = {
        f"{name}.{field.name}": field.name
        for name, kind in kinds.items()
        if _is_table(kind)
        for field in dataclasses.fields(_table_class(kind))  # type: ignore[arg-type]
    }
    close = [path for path, name in in_tables.items() if name == key]
    close = close or difflib.get_close_matches(key, [*kinds, *in_tables], n=1)
    return f", did you mean {close[0]}?" if close else f"; known keys: {', '.join(kinds)}"


def _parse(text: str, kind: object, where: str) -> object:
    """Convert environment text."""
    inner = _without_none(kind)
    if inner is not kind and text == "":
        return None
    if inner is str:
        return text
    if typing.get_origin(inner) is tuple:
        if typing.get_args(inner)[0] is not str:
            raise ConfigError(f"{where}: this list can only be given in the file")
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if inner is bool:
        return _converted(lambda: _BOOLS[text.lower()], "true or false", text, where)
    if inner is int:
        return _converted(lambda: int(text), "an integer", text, where)
    if inner is float:
        return _number(_converted(lambda: float(text), "a number", text, where), where)
    return _convert(text, inner, where)


def _number(value: object, where: str) -> object:
    # No bound holds for it: every comparison with NaN is false.
    if value != value:
        raise ConfigError(f"{where}: expected a number, not nan")
    return value


def _flag(value: object, kind: object, where: str) -> object:
    return _parse(value, kind, where) if isinstance(value, str) else _convert(value, kind, where)


def _converted(parse: Callable[[], object], wanted: str, text: str, where: str) -> object:
    try:
        return parse()
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{where}: expected {wanted}, not {text!r}") from error


def _convert(value: object, kind: object, where: str) -> object:
    """Check a typed value (TOML, flag) and bring it to the field's type."""
    inner = _without_none(kind)
    if value is None and inner is not kind:
        return None
    if typing.get_origin(inner) is tuple:
        return _convert_tuple(value, typing.get_args(inner)[0], where)
    if inner is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    if inner is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return _number(float(value), where)
        except OverflowError as error:
            raise ConfigError(f"{where}: expected a number that is not as large") from error
    if dataclasses.is_dataclass(inner) and isinstance(inner, type):
        return _convert_table(value, inner, where)
    if isinstance(inner, type) and type(value) is inner:
        return value
    name = inner.__name__ if isinstance(inner, type) else str(inner)
    raise ConfigError(f"{where}: expected {name}, not {value!r}")


def _convert_tuple(value: object, item: object, where: str) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: expected a list, not {value!r}")
    return tuple(_convert(entry, item, f"{where}[{i}]") for i, entry in enumerate(value))


def _convert_table(value: object, cls: type[T], where: str) -> T:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table, not {value!r}")
    kinds = typing.get_type_hints(cls)
    values = {
        key: _convert(entry, _kind(kinds, key, f"{where}.{key}"), f"{where}.{key}")
        for key, entry in value.items()
    }
    return _build(cls, values, where)


def _build(cls: type[T], values: Mapping[str, object], where: str) -> T:
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} must be given")
    return cls(**values)


def _without_none(kind: object) -> object:
    """X for `X | None`, else the kind itself."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        rest = [arg for arg in typing.get_args(kind) if arg is not types.NoneType]
        return rest[0] if len(rest) == 1 else kind
    return kind
