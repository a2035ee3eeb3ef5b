"""GET /v1/models and /v1/models/{id}: the models that a key may use. One answer has what clients of
the OpenAI API, of vLLM and of the Anthropic API read, since all ask at the same path."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import OutriderError, UnknownModelError
from services.edge.http.exchange import Exchange
from services.edge.models.choice import usable
from services.edge.wire.client import ListedModel

_MESH_S: Final = 0.5
"""What a router gets to say which replicas there are; the list does without otherwise."""
_CODEX: Final = b"client_version"
"""Field of the query that Codex alone sends."""


class SamplingDefaults(msgspec.Struct, kw_only=True):
    """Default sampling values for parameters that a request leaves out."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float


class Model(msgspec.Struct, kw_only=True):
    """A model that may be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time at which this edge was started."""
    owned_by: Literal["outrider"] = "outrider"
    type: Literal["model"] = "model"
    """This and the fields up to `capabilities` are the Anthropic API's."""
    display_name: str
    created_at: str
    """The same time by RFC 3339."""
    max_input_tokens: int | None
    """Most tokens of prompt and reply together; null if unknown."""
    max_tokens: int | None
    """Most tokens of a reply; null for an embedding model."""
    capabilities: None = None
    context_window: int | UnsetType = UNSET
    """Most tokens of prompt and reply together; of an embedding model, of one text, if its
    definition gives it."""
    max_model_len: int | UnsetType = UNSET
    """The same, as vLLM calls it."""
    default_max_tokens: int | UnsetType = UNSET
    """Most tokens of a reply to a chat completion or a Responses request that names no limit."""
    engines: list[ModelEngine] | UnsetType = UNSET
    """Left out where no router tells this edge of the mesh (`router.mesh_page`)."""
    default_sampling_params: SamplingDefaults | UnsetType = UNSET
    """The model's own settings; left out for a model that has none, and, where they are in its
    files, until this edge has loaded it once."""


class ModelEngine(msgspec.Struct, kw_only=True, frozen=True):
    """What computes in some replicas of a model, as a router says. Which and where these are is
    for operators alone."""

    engine: str
    guarantees: tuple[str, ...]
    """What they promise of their replies: docs/guides/engines.md."""


class ModelList(msgspec.Struct, kw_only=True):
    """The models; the first is the default of requests that name none."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: Literal[False] = False
    """This and the next two are the Anthropic API's: the list is whole."""
    first_id: str | None = None
    last_id: str | None = None
    models: list[None] | UnsetType = UNSET
    """Only for Codex, which names its version in the request and reads nothing without this list.
    It stays empty: an entry would replace Codex's own instructions to the model."""


async def serve_models(exchange: Exchange) -> None:
    """Answer with the list of all models."""
    engines = await _engines(exchange)
    data = [_model(exchange, it, engines) for it in _listed(exchange)]
    models = ModelList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        models=[] if _CODEX in parse_qs(exchange.scope["query_string"]) else UNSET,
    )
    await exchange.answer(200, msgspec.json.encode(models))


async def serve_model(exchange: Exchange) -> None:
    """One of them. Raises UnknownModelError."""
    name: str = exchange.scope["path_params"]["model"]
    for listed in _listed(exchange):
        if listed.name == name:
            model = _model(exchange, listed, await _engines(exchange))
            await exchange.answer(200, msgspec.json.encode(model))
            return
    raise UnknownModelError(f"there is no model {name[:100]!r} here; GET /v1/models lists all")


def _listed(exchange: Exchange) -> list[ListedModel]:
    context, identity = exchange.frontend.context, exchange.identity
    assert identity is not None
    models, embedders = context.models, context.models.embedders
    return [
        *models.listed(usable(models.names, identity.models)),
        *(
            ListedModel(name, b"", embedders[name].max_context_tokens)
            for name in usable(embedders.names, identity.models)
        ),
    ]


async def _engines(exchange: Exchange) -> dict[str, list[ModelEngine]] | None:
    """By model; None if no router tells this edge."""
    try:
        async with asyncio.timeout(_MESH_S):
            looked = await exchange.frontend.mesh.look()
    except (OutriderError, TimeoutError):
        return None
    found: dict[str, list[ModelEngine]] = {}
    for it in looked.state["replicas"]:
        one = ModelEngine(engine=it["engine"], guarantees=tuple(it["guarantees"]))
        engines = found.setdefault(it["model"], [])
        if one.engine and one not in engines:
            engines.append(one)
    return found


def _model(
    exchange: Exchange, listed: ListedModel, engines: dict[str, list[ModelEngine]] | None
) -> Model:
    own, context_tokens = listed.suggested, listed.max_context_tokens
    most = exchange.frontend.config.default_max_tokens or context_tokens
    writes = listed.name in exchange.frontend.context.models.names
    started_s = exchange.frontend.started_s
    return Model(
        id=listed.name,
        created=started_s,
        display_name=listed.name,
        created_at=datetime.fromtimestamp(started_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=context_tokens or None,
        max_tokens=(context_tokens or None) if writes else None,
        context_window=context_tokens or UNSET,
        max_model_len=context_tokens or UNSET,
        engines=UNSET if engines is None else engines.get(listed.name, []),
        default_max_tokens=min(most, context_tokens) if writes else UNSET,
        default_sampling_params=UNSET if own is None else SamplingDefaults(**own.values()),
    )
