"""Finds a client's API key if none is given: in the environment, in the user's configuration file,
or in the state of a mesh of `outrider up` on this machine."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from outrider.errors import ConfigError, InvalidRequestError
from outrider.host_names import is_loopback

KEY_VARIABLE: Final = "OUTRIDER_API_KEY"
DEVELOPMENT_KEY: Final = "development.key"
"""In a mesh's state folder: the key that `outrider up` made."""
_MESH: Final = "mesh.json"
_MAX_BYTES: Final = 1 << 20


def _config_file(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/outrider/config.toml, or ~/.config/outrider/config.toml."""
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "outrider" / "config.toml"


def state_folder(environ: Mapping[str, str]) -> Path:
    """Folder in which `outrider up` keeps a mesh by default: $OUTRIDER_STATE_DIR, or the user's
    state folder (XDG Base Directory)."""
    if explicit := environ.get("OUTRIDER_STATE_DIR"):
        return Path(explicit)
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "outrider"


def configured_key(environ: Mapping[str, str]) -> str:
    """The API key from the environment, or from table [client] of the configuration file:
    `api_key`, or the contents of `api_key_file`; "" if none. Raises ConfigError for a damaged
    file."""
    if key := environ.get(KEY_VARIABLE, "").strip():
        return key
    file = _config_file(environ)
    try:
        table = tomllib.loads(_text(file)).get("client", {})
    except (OSError, KeyError):
        return ""
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    if not isinstance(table, Mapping):
        raise ConfigError(f"{file}: client must be a table, write [client]")
    key, named = table.get("api_key", ""), table.get("api_key_file", "")
    if not isinstance(key, str) or not isinstance(named, str) or (key and named):
        raise ConfigError(f"{file} [client] takes one of api_key and api_key_file, which are text")
    if not named:
        return key.strip()
    path = Path(named).expanduser()
    try:
        return _text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} with the API key cannot be read: {error}") from error


def read_key_file(file: Path) -> str:
    """The API key in a file. Raises InvalidRequestError."""
    try:
        key = _text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} with the API key cannot be read: {error}") from error
    if not key:
        raise InvalidRequestError(f"{file} holds no API key")
    return key


def development_key(folder: Path, host: str, port: int) -> str:
    """The key of the mesh in a folder, if its edge is the one at this address; "": none. It goes to
    no other edge, and to no other machine."""
    if not is_loopback(host):
        return ""
    try:
        mesh = json.loads(_text(folder / _MESH))
        ports = [row["port"] for row in mesh["services"] if row["name"] == "edge"]
        return _text(folder / DEVELOPMENT_KEY).strip() if port in ports else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # there is none, or it is no mesh's any more


def found_key(host: str, port: int, environ: Mapping[str, str] = os.environ) -> str:
    """The key for the edge at this address; "": none. Raises ConfigError."""
    return configured_key(environ) or development_key(state_folder(environ), host, port)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8")
