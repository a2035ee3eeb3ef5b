"""The table of all HTTP routes and of who may call them. Paths outside it are not served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import UnionType
from typing import Any, Final, TypeAlias

from outrider.access.api_keys import Scope
from outrider.client.protocol import HTTP_FRAMES, HTTP_PATH
from outrider.errors import OutriderError, OverloadedError, UnknownChatError
from services.edge.access.limits import RateWords
from services.edge.http import (
    anthropic_errors,
    anthropic_messages,
    anthropic_reply,
    cancelling,
    embedding,
    grpc_calls,
    mesh,
    native,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    responses,
    responses_objects,
    token_counting,
    tokenizing,
    typed_text,
    ui,
    ui_settings,
    verifying,
    webtransport,
)
from services.edge.http.api import ChatApi
from services.edge.http.exchange import JSON, Exchange
from services.edge.http.openai_errors import OpenAiErrorBody, error_body
from services.edge.http.replying import serve_reply

_HTML: Final = "text/html; charset=utf-8"
_PAGE_ALONE: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}
"""The page runs and loads nothing, and is shown in no other one."""

Handle: TypeAlias = Callable[[Exchange], Awaitable[None]]
ErrorBody: TypeAlias = Callable[[OutriderError, str], bytes]


def _status_of(error: OutriderError) -> int:
    return error.http_status


class Access(Enum):
    """Callers that a route admits."""

    CREDENTIAL = auto()
    """Callers with a key; and callers without one, if the edge serves them (`edge.anonymous`)."""
    PUBLIC = auto()
    """Everyone: the answer reveals nothing about chats, models or keys."""
    FRAMES = auto()
    """Callers with a key; and streams of the native protocol, whose first frame says who asks and
    is refused as over QUIC."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """Path in Starlette's syntax: {name} is one segment, {name:path} several."""
    summary: str
    handle: Handle
    response: type | None
    """Type of the body; None: every answer is an error."""
    request: type | None = None
    event: type | UnionType | None = None
    """Type of a stream's events, if the request can ask for a stream; several form a union."""
    access: Access = Access.CREDENTIAL
    scope: Scope = Scope.CHAT
    """Scope that the credential needs, unless the route is public."""
    error_body: ErrorBody = error_body
    error: type = OpenAiErrorBody
    """Type of an error's body."""
    status_of: Callable[[OutriderError], int] = _status_of
    """Status of an error."""
    rate_words: RateWords = RateWords.OPENAI
    """Wording of the headers with remaining limits."""
    media_type: str = JSON
    """Of an answer that is no stream."""
    is_counted: bool = True
    """Whether its requests count, if they have a body."""

    @property
    def is_limited(self) -> bool:
        """Whether its requests count towards their tenant's limits, and answers have the remaining
        limits: all routes that compute something."""
        return self.request is not None and self.is_counted

    @property
    def busy_status(self) -> int:
        """Status of an answer that says that there is no capacity."""
        return self.status_of(OverloadedError(""))


def _reply(api: ChatApi) -> Handle:
    return partial(serve_reply, api)


async def _serve_no_stored_response(exchange: Exchange) -> None:
    """Raises UnknownChatError."""
    raise UnknownChatError(
        "responses are not stored here and conversations not compacted; POST /v1/responses with "
        "all of it, and an Idempotency-Key to get the same response again"
    )


def _not_stored(method: str, path: str) -> Route:
    return Route(
        method,
        f"/v1/responses/{path}",
        "Of stored responses (OpenAI); there are none here.",
        _serve_no_stored_response,
        None,
    )


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
        "DELETE",
        "/v1/chat/completions",
        "Gives up the reply to a request with this Idempotency-Key.",
        cancelling.serve_cancel,
        cancelling.Cancelled,
    ),
    Route(
        "POST",
        "/v1/chat/typing",
        "What its user has typed so far of the next message, to have the reply begun.",
        typed_text.serve_typing,
        typed_text.TypingAnswer,
        typed_text.TypingRequest,
        is_counted=False,
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
        "POST",
        "/v1/embeddings",
        "The vectors of texts (OpenAI).",
        embedding.serve_embeddings,
        openai_embeddings.EmbeddingList,
        openai_embeddings.EmbeddingsRequest,
    ),
    Route(
        "POST",
        "/v1/responses",
        "A response to a conversation (OpenAI); it is not stored.",
        _reply(responses.API),
        responses_objects.ResponseObject,
        responses.ResponsesRequest,
        responses_objects.ResponseEvent,
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        "The number of tokens that a response's prompt has (OpenAI).",
        token_counting.serve_input_tokens,
        responses.InputTokens,
        responses.InputTokensRequest,
    ),
    _not_stored("POST", "compact"),
    _not_stored("GET", "{response_id}"),
    _not_stored("DELETE", "{response_id}"),
    _not_stored("POST", "{response_id}/cancel"),
    _not_stored("GET", "{response_id}/input_items"),
    Route(
        "POST",
        "/v1/messages",
        "The next message of a conversation (Anthropic).",
        _reply(anthropic_messages.API),
        anthropic_reply.AnthropicMessage,
        anthropic_messages.MessagesRequest,
        anthropic_reply.MessageEvent,
        error_body=anthropic_errors.error_body,
        error=anthropic_errors.AnthropicErrorBody,
        status_of=anthropic_errors.status_of,
        rate_words=RateWords.ANTHROPIC,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        "The number of tokens that a message's prompt has (Anthropic).",
        token_counting.serve_count_tokens,
        anthropic_messages.TokenCount,
        anthropic_messages.CountTokensRequest,
        error_body=anthropic_errors.error_body,
        error=anthropic_errors.AnthropicErrorBody,
        status_of=anthropic_errors.status_of,
        rate_words=RateWords.ANTHROPIC,
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
        "GET",
        "/v1/mesh",
        "How the mesh is doing, for operators; as an event stream one a second.",
        mesh.serve_mesh,
        mesh.Mesh,
        event=mesh.Mesh,
        scope=Scope.MESH,
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
    "All of this for programs (OpenAPI).",
    lambda exchange: exchange.answer(200, exchange.frontend.document),
    dict[str, Any],
    access=Access.PUBLIC,
)


async def _serve_page(exchange: Exchange) -> None:
    await exchange.answer(200, exchange.frontend.page, content_type=_HTML, headers=_PAGE_ALONE)


async def _serve_root(exchange: Exchange) -> None:
    serve = ui.serve_chat_page if exchange.frontend.config.chat_page else _serve_page
    await serve(exchange)


def _page(path: str, summary: str, handle: Handle, media_type: str = _HTML) -> Route:
    return Route("GET", path, summary, handle, str, access=Access.PUBLIC, media_type=media_type)


NATIVE: Final = Route(
    "POST",
    HTTP_PATH,
    "A stream of the native protocol, for clients that QUIC does not reach, and for pages.",
    native.serve_stream,
    bytes,
    access=Access.FRAMES,
    media_type=HTTP_FRAMES,
)
PAGES: Final = (
    _page("/", "The chat page, for people.", _serve_root),
    _page("/docs", "What this is, for people.", _serve_page),
    _page("/ui", "The chat page, for people.", ui.serve_chat_page),
    _page("/ui/mesh", "How the mesh is doing, for operators.", ui.serve_mesh_page),
    Route(
        "GET",
        "/ui/settings.json",
        "What the pages have to know of the edge.",
        ui_settings.serve_ui_settings,
        ui_settings.UiSettings,
        access=Access.PUBLIC,
    ),
    _page("/ui/static/{digest}/{name}", "A file of the pages.", ui.serve_file, "*/*"),
)
TRANSPORTS: Final = Route(
    "GET",
    "/ui/transport.json",
    "How pages reach this edge by WebTransport, and the hashes of its certificates.",
    webtransport.serve_transports,
    webtransport.Transports,
    access=Access.PUBLIC,
)
VERIFY: Final = Route(
    "POST",
    verifying.PATH,
    "A session whose client drafts by means of its own (gRPC).",
    verifying.serve_verify,
    bytes,
    media_type=grpc_calls.MEDIA_TYPES[0],
)
ALL_ROUTES: Final = (*ROUTES, DOCUMENT, NATIVE, VERIFY, TRANSPORTS, *PAGES)
_BY_PATH: Final = {route.path: route for route in reversed(ALL_ROUTES)}
"""The first route of each path."""
_MESSAGES: Final = "/v1/messages"


_PUBLIC: Final = tuple(
    (route.path.partition("{")[0], "{" in route.path)
    for route in ALL_ROUTES
    if route.access is Access.PUBLIC
)
"""Paths of public routes, and whether they are only beginnings of paths."""


def is_public(path: str) -> bool:
    """Whether a path is of a public route: nobody is identified there."""
    return any(
        path.startswith(public) if is_beginning else path == public
        for public, is_beginning in _PUBLIC
    )


def error_answer(path: str, error: OutriderError, request_id: str) -> tuple[int, bytes]:
    """Status and body of an error in the API that the path is of, be it served or not."""
    above = _MESSAGES if path.startswith(f"{_MESSAGES}/") else DOCUMENT.path
    route = _BY_PATH.get(path) or _BY_PATH[above]
    return route.status_of(error), route.error_body(error, request_id)
