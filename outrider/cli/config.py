"""`outrider config`: a service's configuration shown, explained and checked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.local.settings import config_class
from outrider.cli.serve import Role, flags_of
from outrider.config import load
from outrider.config_text import defaults_text, effective_text
from outrider.errors import ConfigError
from outrider.models.catalog import load_catalog

app = typer.Typer(no_args_is_help=True, help="Show, explain and check a service's configuration.")
_ROLES = tuple(role.name for role in Role)


@app.command()
def show(
    role: Annotated[Role, typer.Argument(help="The service.")],
    config: Annotated[Path | None, typer.Option(help="TOML file, as for `outrider serve`.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a configuration key, as for `outrider serve`. Repeatable.",
        ),
    ] = None,
) -> None:
    """Print the configuration that `outrider serve ROLE` would use, with these flags and this
    environment.

    The output is a TOML file. It names the default beside each value that differs, and leaves out
    secrets.
    """
    flags = flags_of(settings or [])
    loaded = load(config_class(role.name), role.name, file=config, flags=flags)
    print(effective_text(loaded, role.name))


@app.command()
def defaults(role: Annotated[Role, typer.Argument(help="The service.")]) -> None:
    """Print every key with its default and its meaning, as a TOML file to start from.

    In the environment, KEY of [ROLE] is OUTRIDER_ROLE_KEY and KEY of [ROLE.TABLE] is
    OUTRIDER_ROLE_TABLE_KEY. With --set they are KEY and TABLE.KEY.
    """
    print(defaults_text(config_class(role.name), role.name))


@app.command()
def validate(
    file: Annotated[
        Path, typer.Argument(help="TOML file with tables such as [edge] and [router].")
    ],
) -> None:
    """Check the tables and models of a configuration file, without starting anything.

    Exit status 1 if it has an error; the output says where. The environment is not read.
    """
    tables = _tables(file)
    unknown = [name for name in tables if name not in (*_ROLES, "models")]
    if unknown:
        raise ConfigError(
            f"{file} has a table [{unknown[0]}], which no service reads; "
            f"the tables are [{'], ['.join(_ROLES)}] and [models.NAME]"
        )
    roles = [name for name in _ROLES if name in tables]
    if not roles and "models" not in tables:
        raise ConfigError(f"{file} is empty; `outrider config defaults ROLE` prints one to fill in")
    load_catalog(file)
    for role in roles:
        load(config_class(role), role, file=file, environ={})
    what = [f"[{role}]" for role in roles] + ["[models]"] * ("models" in tables)
    print(f"{file}: {', '.join(what)} well")


def _tables(file: Path) -> list[str]:
    try:
        return list(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
