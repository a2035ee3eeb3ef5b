"""A service's configuration as text: every key with its value, its default and what it is for.

The text is TOML that `outrider.config.load` reads back to the same values. Secrets are left out.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from outrider.config import toml_literal

_SECRET: Final = re.compile(r"(.*_)?(key|secret|password|token)")
_PATHS: Final = frozenset({"private_key"})
_WIDTH: Final = 100
_MISSING: Final = dataclasses.MISSING


def is_secret(key: str) -> bool:
    """Whether the value of this key, or `table.key`, must not be shown."""
    name = key.rpartition(".")[2]
    return _SECRET.fullmatch(name) is not None and name not in _PATHS


def defaults_text(cls: type[object], section: str) -> str:
    """All keys of table `[section]`, each behind a comment that explains it. Keys without a default
    are commented out."""
    return "\n".join(_lines(cls, None, section, explained=True))


def effective_text(config: object, section: str) -> str:
    """All values of `config`; a comment marks those that are not the default."""
    return "\n".join(_lines(type(config), config, section, explained=False))


def changed_values(config: object) -> dict[str, object]:
    """Values that are not the default, by `key` or `table.key`, for a log line. A secret is shown
    as set, a list of tables by its length."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value, default = getattr(config, field.name), _default(field)
        if value == default:
            continue
        if _is_table(value):
            changed = changed_values(value)
            found |= {f"{field.name}.{key}": changed[key] for key in changed}
        elif is_secret(field.name):
            found[field.name] = "set"
        elif _is_list_of_tables(value):
            found[field.name] = len(value)
        else:
            found[field.name] = str(value) if isinstance(value, Path) else value
    return found


def _lines(cls: type[Any], config: object, section: str, *, explained: bool) -> Iterator[str]:
    """Lines of one table, then of the tables in it; with `config` None they show the defaults."""
    kinds, about = typing.get_type_hints(cls), _explanations(cls)
    tables, lists = [], []
    yield f"[{section}]"
    for field in dataclasses.fields(cls):
        default = _default(field)
        value = default if config is None else getattr(config, field.name)
        if _is_table(value):
            tables.append((field.name, value))
            continue
        if _is_list_of_tables(value):
            lists.append((field.name, value))
            continue
        if explained:
            yield ""
            yield from textwrap.wrap(
                about.get(field.name, ""), _WIDTH, initial_indent="# ", subsequent_indent="# "
            )
        yield _line(field.name, value, default, kinds[field.name], explained=explained)
    for name, value in tables:
        yield ""
        yield from _lines(type(value), value, f"{section}.{name}", explained=explained)
    for name, values in lists:
        for value in values:
            yield ""
            table, *rest = _lines(type(value), value, f"{section}.{name}", explained=explained)
            yield f"[{table}]"
            yield from rest


def _line(name: str, value: object, default: object, kind: object, *, explained: bool) -> str:
    if value is _MISSING:
        return f"# {name} =  # must be given"
    if is_secret(name) and value:
        return f"# {name} is set, and not shown"
    if value is None:
        return f"# {name} ="
    line = f"{name} = {toml_literal(value)}"
    if explained or value == default:
        return line
    if default is _MISSING:
        return line
    was = "none" if default is None else toml_literal(default)
    return f"{line}  # default: {'not shown' if is_secret(name) else was}"


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not _MISSING:
        return field.default_factory()
    return field.default


def _is_table(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_list_of_tables(value: object) -> typing.TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple) and bool(value) and all(map(_is_table, value))


def _explanations(cls: type[Any]) -> dict[str, str]:
    """The text behind each field in the source of a dataclass, and of those that it extends (PEP
    257: attribute docstrings)."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            found |= _own_explanations(each)
    return found


def _own_explanations(cls: type[Any]) -> dict[str, str]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(parsed, ast.ClassDef)
    found = {}
    for field, behind in zip(parsed.body, parsed.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(behind, ast.Expr)
            and isinstance(behind.value, ast.Constant)
            and isinstance(behind.value.value, str)
        ):
            found[field.target.id] = " ".join(behind.value.value.split())
    return found
