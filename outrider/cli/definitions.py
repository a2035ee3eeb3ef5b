"""`outrider models add` and `forget`: definitions in the user's models file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.model_choice import source_of
from outrider.cli.models import Json, failures
from outrider.errors import ArtifactMissingError, ConfigError, UnknownModelError
from outrider.models.catalog import (
    SHIPPED,
    ModelSpec,
    editing,
    models_file,
    read_models_file,
    write_user_definitions,
)
from outrider.models.definitions import DefinitionsSource, as_table, read_definitions
from outrider.models.sources import parse_source
from outrider.models.store import ModelStore, default_root
from outrider.reply_parsing.formats import CallSyntax


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name that requests will use.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A GGUF file, a model's folder (write its path with a slash), or a source: "
            "file:PATH, dir:PATH, hf:REPO, hf:REPO@REVISION#file, https://host/path, pypi:...",
        ),
    ],
    sha256: Annotated[
        str, typer.Option(help="The sha256 of the model; other content is refused.")
    ] = "",
    draft: Annotated[
        str, typer.Option(help="Draft model of edges: a model's name, or `none`.")
    ] = "",
    chat_template: Annotated[
        Path | None,
        typer.Option(help="File with a Jinja chat template, to use instead of the model's own."),
    ] = None,
    context: Annotated[
        int,
        typer.Option(
            min=0,
            max=1 << 24,
            help="Longest prompt and reply together, in tokens; 0: as the model's file says.",
        ),
    ] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Another control token that ends a reply. Repeatable."),
    ] = None,
    tool_parser: Annotated[
        str,
        typer.Option(
            help=f"Format of the model's tool calls: {', '.join(CallSyntax)}; default: by its "
            "template."
        ),
    ] = "",
    embeds: Annotated[
        bool,
        typer.Option("--embeds", help="Define an embedding model: it makes vectors, not replies."),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing definition.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Define a model under a name of your own. Nothing is fetched yet."""
    with failures(as_json):
        table: dict[str, object] = {
            "source": source_of(source),
            "sha256": sha256,
            "draft": draft,
            "max_context_tokens": context,
            "stop_tokens": stop or [],
            "chat_template": _template(chat_template),
            "tool_parser": tool_parser,
            "embeds": embeds,
        }
        place = DefinitionsSource("models add", lambda text: parse_source(text, {}).text)
        (spec,) = read_definitions({name: table}, place)
        file = models_file()
        with editing():
            kept = {it.name: it for it in _user_definitions(file)}
            if not replace and (name in kept or name in SHIPPED.names):
                where = file if name in kept else "the shipped catalogue"
                raise ConfigError(f"{name} is defined in {where}; to replace it: --replace")
            _write([*(it for it in kept.values() if it.name != name), spec])
    if as_json:
        print(json.dumps({"defined": name, "source": spec.source, "defined_in": str(file)}))
    else:
        print(
            f"{name} is defined in {file}; fetch it: outrider models pull {name}; "
            f"serve it: outrider up --model {name}"
        )


def forget(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `outrider models add` defined.")
    ],
    as_json: Json = False,
) -> None:
    """Remove a definition. The model itself stays in the store."""
    with failures(as_json):
        file = models_file()
        with editing():
            kept = {it.name: it for it in _user_definitions(file)}
            spec = kept.pop(name, None)
            if spec is None and name in SHIPPED.names:
                raise ConfigError(f"{name} is shipped with Outrider and cannot be forgotten")
            if spec is None:
                known = ", ".join(kept) or "none"
                raise UnknownModelError(f"{file} does not define {name[:100]!r}; it has {known}")
            _write(kept.values())
        held = any(it.source == spec.source for it in ModelStore(default_root()).list())
    if as_json:
        print(json.dumps({"forgotten": name, "defined_in": str(file)}))
    else:
        hint = f"; its weights stay: outrider models rm {spec.source}" if held else ""
        print(f"{name} is forgotten{hint}")


def _user_definitions(file: Path) -> list[ModelSpec]:
    return read_models_file(file) if file.exists() else []


def _write(specs: Iterable[ModelSpec]) -> None:
    """Raises ConfigError for definitions that do not go together."""
    definitions = tuple(specs)
    SHIPPED.extended(definitions)
    write_user_definitions({spec.name: as_table(spec) for spec in definitions})


def _template(file: Path | None) -> str:
    """The text of a chat template. Raises ArtifactMissingError, ConfigError."""
    if file is None:
        return ""
    # Imported here: Jinja takes a while, and few definitions have a template.
    from outrider.models.chat_template import ChatTemplate

    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ArtifactMissingError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    if not text:
        raise ConfigError(f"{file} is empty; leave --chat-template out for the model's own")
    ChatTemplate(text, [], {})
    return text
