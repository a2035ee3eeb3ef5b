"""GET /v1/models and /v1/models/{id} of the OpenAI API: the models that a key may use."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import UnknownModelError
from services.edge.http.exchange import Exchange
from services.edge.models.choice import usable
from services.edge.wire.client import ListedModel


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
    context_window: int | UnsetType = UNSET
    """Most tokens of prompt and reply together; of an embedding model, of one text, if its
    definition gives it."""
    max_model_len: int | UnsetType = UNSET
    """The same, as vLLM calls it."""
    default_max_tokens: int | UnsetType = UNSET
    """Most tokens of a reply to a chat completion or a Responses request that names no limit."""
    default_sampling_params: SamplingDefaults | UnsetType = UNSET
    """The model's own settings; left out for a model that has none, and, where they are in its
    files, until this edge has loaded it once."""


class ModelList(msgspec.Struct, kw_only=True):
    """The models; the first is the default of requests that name none."""

    object: Literal["list"] = "list"
    data: list[Model]


async def serve_models(exchange: Exchange) -> None:
    """Answer with the list of all models."""
    models = ModelList(data=[_model(exchange, it) for it in _listed(exchange)])
    await exchange.answer(200, msgspec.json.encode(models))


async def serve_model(exchange: Exchange) -> None:
    """One of them. Raises UnknownModelError."""
    name: str = exchange.scope["path_params"]["model"]
    for listed in _listed(exchange):
        if listed.name == name:
            await exchange.answer(200, msgspec.json.encode(_model(exchange, listed)))
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


def _model(exchange: Exchange, listed: ListedModel) -> Model:
    own, context_tokens = listed.suggested, listed.max_context_tokens
    most = exchange.frontend.config.default_max_tokens or context_tokens
    writes = listed.name in exchange.frontend.context.models.names
    return Model(
        id=listed.name,
        created=exchange.frontend.started_s,
        context_window=context_tokens or UNSET,
        max_model_len=context_tokens or UNSET,
        default_max_tokens=min(most, context_tokens) if writes else UNSET,
        default_sampling_params=UNSET if own is None else SamplingDefaults(**own.values()),
    )
