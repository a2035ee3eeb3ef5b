"""The models of this process by name, and where their definitions are read.

Later wins: `catalog.toml` beside this module, the user's models file, and the tables [models.NAME]
of the configuration file that a service was started with. Entry points that are given such a file
`load` and `use` it; for all others the catalog is loaded from the environment when it is first
asked.

Names reach the store from requests; sources never do: a client chooses among these definitions, it
cannot make a service read a file or a URL.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from outrider.durable_files import write_atomic
from outrider.errors import ConfigError
from outrider.models.definitions import (
    MAX_TEMPLATE_CHARS,
    DefinitionsSource,
    ModelCatalog,
    ModelSpec,
    read_definitions,
    to_toml,
)
from outrider.models.disk.files import exclusive
from outrider.models.sources import parse_source

__all__ = [
    "DEFAULT_MODEL",
    "MODELS_VARIABLE",
    "SHIPPED",
    "SHIPPED_IN",
    "ModelCatalog",
    "ModelSpec",
    "config_file",
    "current",
    "editing",
    "load_catalog",
    "lookup",
    "models_file",
    "names",
    "read_config_file",
    "read_models_file",
    "use",
    "user_definitions",
    "write_user_definitions",
]

MODELS_VARIABLE: Final = "OUTRIDER_MODELS"
SHIPPED_IN: Final = "shipped"
"""Shown as the origin of definitions that come with Outrider."""
_MAX_FILE_BYTES: Final = 16 << 20
_SHIPPED_FILE: Final = Path(__file__).with_name("catalog.toml")


def models_file(environ: Mapping[str, str] = os.environ) -> Path:
    """$OUTRIDER_MODELS, or models.toml in the user's configuration folder (XDG Base Directory)."""
    if chosen := environ.get(MODELS_VARIABLE, ""):
        return Path(chosen).expanduser()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "outrider" / "models.toml"


def read_models_file(path: Path) -> list[ModelSpec]:
    """The definitions of a models file, which has nothing else. Raises ConfigError."""
    document = _document(path)
    for key in document:
        if key != "models":
            raise ConfigError(
                f"{path}: {key[:64]!r} is no table of a models file; [models.NAME] is"
            )
    return read_definitions(document.get("models", {}), _place(path))


def read_config_file(path: Path) -> list[ModelSpec]:
    """The definitions among the tables of a configuration file. Raises ConfigError."""
    return read_definitions(_document(path).get("models", {}), _place(path))


def user_definitions(environ: Mapping[str, str] = os.environ) -> list[ModelSpec]:
    """Definitions of the user's models file; none without a file. Raises ConfigError, also if
    $OUTRIDER_MODELS names a file that does not exist."""
    path = models_file(environ)
    if not environ.get(MODELS_VARIABLE, "") and not path.exists():
        return []
    return read_models_file(path)


def write_user_definitions(
    tables: Mapping[str, Mapping[str, object]], environ: Mapping[str, str] = os.environ
) -> None:
    """Replace the user's models file; this process looks names up anew. Raises OSError."""
    write_atomic(models_file(environ).resolve(), to_toml(tables).encode())
    use(None)


def editing(environ: Mapping[str, str] = os.environ) -> AbstractContextManager[bool]:
    """A lock to hold from reading the user's models file until it is rewritten, so that no edit is
    lost. Raises ConfigError if it is not a regular file (for example /dev/null), which would be
    replaced."""
    path = models_file(environ)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file that definitions could be written to")
    return exclusive(path.with_name(f".{path.name}.lock"))


def _document(path: Path) -> dict[str, Any]:
    return _parsed(path, _text_of(path, _MAX_FILE_BYTES))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _text_of(path: Path, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    if len(data) > max_bytes:
        raise ConfigError(f"{path} has more than {max_bytes} bytes")
    return text


def _canonical(source: str) -> str:
    # Without the environment: the hub's address is no part of a definition.
    return parse_source(source, {}).text


def _place(path: Path) -> DefinitionsSource:
    """A file as the origin of definitions; relative paths in it start at its folder."""
    folder = path.absolute().parent

    def source_text(source: str) -> str:
        scheme, _, rest = source.partition(":")
        if scheme in ("file", "dir") and rest:
            source = f"{scheme}:{folder / Path(rest).expanduser()}"
        return _canonical(source)

    def template_text(file: str) -> str:
        if "\0" in file:
            raise ConfigError("a path has no NUL character")
        return _text_of(folder / Path(file).expanduser(), 4 * MAX_TEMPLATE_CHARS)

    return DefinitionsSource(str(path), source_text, template_text)


def _read_shipped() -> ModelCatalog:
    document = _document(_SHIPPED_FILE)
    place = DefinitionsSource(SHIPPED_IN, _canonical)
    return ModelCatalog(read_definitions(document["models"], place), document["default"])


SHIPPED: Final = _read_shipped()
"""The models that come with Outrider."""
DEFAULT_MODEL: Final = SHIPPED.lookup("")


def load_catalog(
    config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> ModelCatalog:
    """Definitions that are shipped, then the user's, then those of the configuration file `config`;
    the last of a name wins. Raises ConfigError."""
    specs = user_definitions(environ)
    if config is not None:
        specs += read_config_file(config)
    return SHIPPED.extended(specs)


class _Process:
    """The catalog and configuration file in which this process looks up names."""

    catalog: ModelCatalog | None = None
    config: Path | None = None


def use(catalog: ModelCatalog | None, config: Path | None = None) -> None:
    """Look names up in `catalog` from now on; None: load it anew when it is next asked. `config`:
    the configuration file that some of it is from, for the child processes."""
    _Process.catalog, _Process.config = catalog, config


def current() -> ModelCatalog:
    """The catalog of this process. Raises ConfigError if it is yet to be loaded, and cannot be."""
    if _Process.catalog is None:
        _Process.catalog = load_catalog()
    return _Process.catalog


def config_file() -> Path | None:
    """The configuration file that some definitions are from, if one is."""
    return _Process.config


def names() -> tuple[str, ...]:
    """Every known name."""
    return current().names


def lookup(name: str) -> ModelSpec:
    """The definition of a name; "" is the default model. Raises UnknownModelError, which lists the
    names."""
    return current().lookup(name)
