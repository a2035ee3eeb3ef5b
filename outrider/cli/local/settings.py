"""Settings of services given to `outrider up`, in the types of their configuration files."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outrider.config import from_text
from outrider.config_text import is_secret
from outrider.errors import ConfigError


def refuse_secret(key: str, instead: str) -> None:
    """Raises ConfigError for a key whose value is a secret: every user of the machine can read
    command lines (proc(5), /proc/PID/cmdline)."""
    if is_secret(key):
        raise ConfigError(
            f"{key} is a secret, which others could read on the command line; give it {instead}"
        )


def typed(role: str, texts: Iterable[str]) -> dict[str, object]:
    """KEY=VALUE texts of one role as values for its file. Raises ConfigError."""
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        key = key.strip().replace("-", "_")
        refuse_secret(key, f"in a file, as {key} of its table [{role}], with --config")
        table = found
        *tables, name = key.split(".")
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = from_text(config_class(role), key, value, f"--set {role}.{key}")
    return found


def read(file: Path, roles: Iterable[str]) -> dict[str, dict[str, object]]:
    """The tables of a TOML file by role, without those that define models. Raises ConfigError for
    other tables."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    document.pop("models", None)
    known = tuple(roles)
    for name, table in document.items():
        if name not in known or not isinstance(table, Mapping):
            raise ConfigError(f"{file}: tables are {', '.join(known)}, models, not {name}")
    return document


def config_class(role: str) -> Any:
    """The settings of a service, as a class; `role` as in the file's table."""
    module = importlib.import_module(f"services.{role}.config")
    return getattr(module, f"{role.title().replace('_', '')}Config")
