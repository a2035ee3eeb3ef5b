"""What is served over HTTP, and to whom: a table. What is not in it is not served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final, TypeAlias

from outrider.access.api_keys import Scope
from outrider.errors import OutriderError
from services.edge.http import openai_chat, openai_completions, openai_models, tokenizing
from services.edge.http.api import ChatApi
from services.edge.http.exchange import Exchange
from services.edge.http.openai_errors import OpenAiErrorBody, error_body
from services.edge.http.replying import serve_reply

Handle: TypeAlias = Callable[[Exchange], Awaitable[None]]
ErrorBody: TypeAlias = Callable[[OutriderError, str], bytes]


class Access(Enum):
    """Who may call a route."""

    CREDENTIAL = auto()
    """Who has a key; and who has none, where the edge serves clients without one
    (`edge.anonymous`)."""
    PUBLIC = auto()
    """Anybody: it says nothing of anybody's chats, models or keys."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """As Starlette writes paths: {name} is one segment, {name:path} several."""
    summary: str
    handle: Handle
    response: type
    """Of the body, where it is JSON."""
    request: type | None = None
    event: type | None = None
    """Of the events, where the request may ask for a stream of them."""
    access: Access = Access.CREDENTIAL
    scope: Scope = Scope.CHAT
    """What the credential has to be for, unless the route is public."""
    error_body: ErrorBody = error_body
    error: type = OpenAiErrorBody
    """Of the body of an error."""


def _reply(api: ChatApi) -> Handle:
    return partial(serve_reply, api)


ROUTES: Final = (
    Route(
        "POST",
        "/v1/chat/completions",
        "The next message of a conversation (OpenAI).",
        _reply(openai_chat.API),
        openai_chat.ChatCompletion,
        openai_chat.ChatCompletionRequest,
        openai_chat.ChatCompletionChunk,
    ),
    Route(
        "POST",
        "/v1/completions",
        "Text that goes on a prompt (OpenAI).",
        _reply(openai_completions.API),
        openai_completions.Completion,
        openai_completions.CompletionRequest,
        openai_completions.Completion,
    ),
    Route(
        "GET",
        "/v1/models",
        "The models that this key may use (OpenAI).",
        openai_models.serve_models,
        openai_models.ModelList,
        scope=Scope.MODELS,
    ),
    Route(
        "GET",
        "/v1/models/{model:path}",
        "One of them (OpenAI).",
        openai_models.serve_model,
        openai_models.Model,
        scope=Scope.MODELS,
    ),
    Route(
        "POST",
        "/tokenize",
        "The token ids of a text or a conversation (vLLM).",
        tokenizing.serve_tokenize,
        tokenizing.TokenizeResponse,
        tokenizing.TokenizeRequest,
        scope=Scope.TOKENIZE,
    ),
    Route(
        "POST",
        "/detokenize",
        "The text of token ids (vLLM).",
        tokenizing.serve_detokenize,
        tokenizing.DetokenizeResponse,
        tokenizing.DetokenizeRequest,
        scope=Scope.TOKENIZE,
    ),
)
DOCUMENT: Final = Route(
    "GET",
    "/openapi.json",
    "This document.",
    lambda exchange: exchange.answer(200, exchange.door.document),
    dict[str, Any],
    access=Access.PUBLIC,
)
ALL_ROUTES: Final = (*ROUTES, DOCUMENT)
