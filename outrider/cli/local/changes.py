"""What it takes to add a model to a mesh that runs, or to take one out of it (pure).

A change is whole or it is not made. Its steps are taken in this order (changing.py):

    add       start the new replicas; name the model in tokenizer, router, edge
    remove    take the name from the edge; wait for chats; take it from router, tokenizer; stop

so that whoever sends a chat on knows where it can go, at every moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from outrider.cli.local import mesh
from outrider.cli.local.mesh import MeshOptions, ProcessSpec, ServedModel
from outrider.errors import ConfigError, UnknownModelError
from outrider.models.definitions import NO_DRAFT

LIVE_KEYS: Final[Mapping[str, Collection[str]]] = {
    "tokenizer": ("models",),
    "router": ("replicas",),
    "edge": ("models",),
}
"""By role, what its running processes take from their files without a restart."""

Definitions = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Change:
    """From the mesh that runs to one with a model more, or less."""

    before: MeshOptions
    after: MeshOptions
    start: tuple[ProcessSpec, ...] = ()
    """Replicas of the model that is added."""
    stop: tuple[str, ...] = ()
    """Names of the replicas of the model that is taken out."""


def added(
    options: MeshOptions,
    model: ServedModel,
    definitions: Definitions,
    running: Iterable[ProcessSpec],
) -> Change:
    """With one more model, the last; `definitions` has its own and its draft's, where those are not
    shipped. Raises ConfigError."""
    if any(model.name == other.name for other in options.models):
        raise ConfigError(f"the mesh serves {model.name} already; see outrider mesh list")
    for name in in_use(options) & definitions.keys():
        if definitions[name] != options.definitions.get(name):
            raise ConfigError(
                f"the mesh serves another model as {name} since it was defined anew; add it by a "
                "name of its own: outrider models add NAME SOURCE"
            )
    after = replace(
        options,
        models=(*options.models, model),
        definitions={**options.definitions, **definitions},
    )
    start = mesh.replicas_of(after, model, [spec.name for spec in running])
    return Change(options, after, start=tuple(start))


def removed(options: MeshOptions, name: str, running: Iterable[ProcessSpec]) -> Change:
    """Without one of its models. Raises ConfigError for the default, UnknownModelError."""
    names = [model.name for model in options.models]
    if name not in names:
        raise UnknownModelError(
            f"the mesh does not serve {name[:100]!r}; it serves {', '.join(names)}"
        )
    if name == names[0]:
        raise ConfigError(
            f"{name} is the model of requests that name none, and stays as long as the mesh runs; "
            "to serve others alone: outrider down, outrider up --model OTHER"
        )
    after = replace(options, models=tuple(it for it in options.models if it.name != name))
    unused = in_use(options) - in_use(after)
    kept = {it: table for it, table in options.definitions.items() if it not in unused}
    after = replace(after, definitions=kept)
    stop = tuple(spec.name for spec in replicas(running) if spec.values["model"] == name)
    return Change(options, after, stop=stop)


def replicas(running: Iterable[ProcessSpec]) -> list[ProcessSpec]:
    """Those of a mesh's processes that are inference replicas."""
    return [spec for spec in running if spec.role == "inference"]


def in_use(options: MeshOptions) -> set[str]:
    """Names of the models that are served, and of their drafts."""
    names = {model.name for model in options.models}
    tables = [options.definitions[name] for name in names if name in options.definitions]
    drafts = {str(table.get("draft", "")) for table in tables}
    return (names | drafts | {options.draft_model}) - {"", NO_DRAFT}


def live(wanted: ProcessSpec) -> dict[str, object]:
    """Of a process's configuration, what it takes from its file while it runs."""
    return {key: wanted.values[key] for key in LIVE_KEYS[wanted.role]}
