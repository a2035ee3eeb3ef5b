"""Saved contexts: meshes elsewhere by name, so that commands need no addresses and certificates.

They are in contexts.toml beside the client's config.toml, which its user alone may read. It holds
paths of keys and certificates, never a key. Commands without flags that say where they go take the
context of --context, else of OUTRIDER_CONTEXT, else the one in use, else the mesh of `outrider up`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from outrider.access.client_key import config_file
from outrider.cli.local.state import write_private
from outrider.config import check_address, toml_literal
from outrider.errors import ConfigError, InvalidRequestError, UnavailableError

VARIABLE: Final = "OUTRIDER_CONTEXT"
MAX_CONTEXTS: Final = 1000
_MAX_BYTES: Final = 4 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Context:
    """A mesh elsewhere. "" stands for what is not given."""

    edge: str = ""
    """HOST:PORT, for `chat`."""
    ca: str = ""
    """Path of the certificate to trust for the edge."""
    key_file: str = ""
    """Path of the file with the API key."""
    user: str = ""
    """Which of the key's users asks."""
    router: str = ""
    """HOST:PORT, for `status`, `explain`, `drain` and `check`."""
    certificate: str = ""
    """Path of an operator's PEM certificate."""
    private_key: str = ""
    """Path of its key."""
    router_ca: str = ""
    """Path of the CA that the routers' certificates lead to."""
    trust_domain: str = ""
    plaintext: bool = False
    """The router is asked without certificates."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All saved ones. Its verbs return what is to be saved instead."""

    current: str = ""
    """Name of the one in use; "": the mesh of `outrider up`."""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Raises InvalidRequestError for a name that is not there."""
        found = self.by_name.get(name)
        if found is None:
            raise InvalidRequestError(
                f"there is no context {name[:64]!r}; `outrider context list` shows those there are"
            )
        return found

    def add(self, name: str, context: Context, *, may_replace: bool) -> Contexts:
        """With another one. Raises InvalidRequestError for what cannot be one."""
        check(name, context)
        if name in self.by_name and not may_replace:
            raise InvalidRequestError(f"there is a context {name!r}; give --replace, or remove it")
        if name not in self.by_name and len(self.by_name) >= MAX_CONTEXTS:
            raise InvalidRequestError(
                f"there are {MAX_CONTEXTS} contexts, which is the limit; remove one first"
            )
        return replace(self, by_name={**self.by_name, name: context})

    def use(self, name: str) -> Contexts:
        """With that one in use; "": none. Raises InvalidRequestError."""
        if name:
            self.get(name)
        return replace(self, current=name)

    def remove(self, name: str) -> Contexts:
        """Without one; if it was in use, none is. Raises InvalidRequestError."""
        self.get(name)
        left = {key: value for key, value in self.by_name.items() if key != name}
        return Contexts("" if self.current == name else self.current, left)


def check(name: str, context: Context) -> None:
    """Raises InvalidRequestError, ConfigError."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name[:80]!r} is no name for a context: use 1 to 64 of letters, digits and . _ -"
        )
    if not (context.edge or context.router):
        raise InvalidRequestError(f"context {name} leads nowhere: give --edge, --router, or both")
    for address, flag in ((context.edge, "--edge"), (context.router, "--router")):
        if address:
            check_address(address, flag)


def parse(text: str, file: str) -> Contexts:
    """Raises ConfigError, which names the file, for text that does not say contexts."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    tables, current = told.get("contexts", {}), told.get("current", "")
    if not isinstance(tables, dict) or not isinstance(current, str):
        raise ConfigError(f"{file} takes current, which is text, and tables [contexts.NAME]")
    if len(tables) > MAX_CONTEXTS:
        raise ConfigError(f"{file} has more than {MAX_CONTEXTS} contexts")
    by_name = {name: _parse_one(name, table, file) for name, table in tables.items()}
    if current and current not in by_name:
        raise ConfigError(f"{file} says that {current[:64]!r} is in use, but has no such context")
    return Contexts(current, by_name)


def _parse_one(name: str, table: Any, file: str) -> Context:
    where = f"{file} [contexts.{name[:64]}]"
    kinds = {it.name: type(it.default) for it in fields(Context)}
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    for key, value in table.items():
        if key not in kinds:
            raise ConfigError(f"{where} has no key {key[:64]!r}; it takes {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            kind = "true or false" if kinds[key] is bool else "text"
            raise ConfigError(f"{where} {key} must be {kind}")
    context = Context(**table)
    try:
        check(name, context)
    except (InvalidRequestError, ConfigError) as error:
        raise ConfigError(f"{where}: {error.message}") from error
    return context


def to_text(contexts: Contexts) -> str:
    """What `parse` reads."""
    lines = [f"current = {toml_literal(contexts.current)}"]
    for name, context in contexts.by_name.items():
        lines += ["", f"[contexts.{toml_literal(name)}]"]
        lines += [f"{key} = {toml_literal(value)}" for key, value in given(context).items()]
    return "\n".join([*lines, ""])


def given(context: Context) -> dict[str, str | bool]:
    """What it says, without what it leaves open."""
    values = {it.name: getattr(context, it.name) for it in fields(Context)}
    return {key: value for key, value in values.items() if value}


def choose(contexts: Contexts, flag: str, variable: str, *, has_place: bool) -> str:
    """The name of the context that a command is for, "" for the mesh of `outrider up`.

    `has_place`: flags say already where it goes. Raises InvalidRequestError for a name that is not
    there, and for two places at once.
    """
    if flag and has_place:
        raise InvalidRequestError(
            "--context says where the command goes: leave out --edge, --router and --state-dir"
        )
    name = "" if has_place else flag or variable or contexts.current
    if name:
        contexts.get(name)
    return name


# --- the file ---


def path(environ: Mapping[str, str]) -> Path:
    """Beside the client's configuration."""
    return config_file(environ).with_name("contexts.toml")


def read(environ: Mapping[str, str] = os.environ) -> Contexts:
    """Raises ConfigError for a file that is damaged."""
    file = path(environ)
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return parse(text, str(file))


def write(contexts: Contexts, environ: Mapping[str, str] = os.environ) -> None:
    """Whole, or not at all."""
    file = path(environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_private(file, to_text(contexts))


# --- commands that go to a context ---


def completed(incomplete: str) -> list[str]:
    """For shell completion."""
    try:
        return [name for name in read().by_name if name.startswith(incomplete)]
    except ConfigError:
        return []


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the context.", autocompletion=completed)
]
Flag: TypeAlias = Annotated[
    str,
    typer.Option(
        "--context",
        help="The saved context to go to (`outrider context`); default: "
        f"{VARIABLE}, or the one in use, or the mesh of `outrider up`.",
        autocompletion=completed,
    ),
]


def chosen(flag: str, *, has_place: bool) -> tuple[str, Context]:
    """Name and context that a command is for; an empty name: the mesh of `outrider up`. Raises
    InvalidRequestError, ConfigError."""
    contexts = read()
    name = choose(contexts, flag, os.environ.get(VARIABLE, ""), has_place=has_place)
    return name, contexts.by_name[name] if name else Context()


@contextmanager
def named(name: str) -> Iterator[None]:
    """A mesh that cannot be reached is said with the context that led there."""
    try:
        yield
    except UnavailableError as error:
        if not name:
            raise
        raise UnavailableError(f"{error.message} (context {name})") from error
