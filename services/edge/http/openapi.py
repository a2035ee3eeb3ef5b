"""The OpenAPI document of all routes, made from the table of routes (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

from services.edge.access.limits import RateWords, rate_header_names
from services.edge.http.exchange import JSON
from services.edge.http.openai_reply import ProvisionalText
from services.edge.http.routes import ALL_ROUTES, Access, Route

_VERSION: Final = "3.1.0"
_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(:\w+)?\}")
_SCHEMES: Final = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of this edge."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_DONE: Final = "[DONE]"
_ERRORS: Final = {
    "401": "No credential, or none that is good here.",
    "403": "The credential does not allow this.",
    "404": "There is no such model, or nothing at this path.",
    "405": "The path takes other methods.",
    "421": "The edge has another name; see its setting http.allowed_hosts.",
    "431": "The head is too large.",
    "429": "No capacity, or too much was asked; retry-after says when to come back.",
    "503": "No replica can be reached, or this edge shuts down.",
}
_BODY_ERRORS: Final = {
    "400": "The request cannot be served as it stands.",
    "408": "The body did not come in time.",
    "409": "Another request goes on with this one.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The idempotency key was used for another request.",
    "500": "The edge or a replica failed.",
    "504": "The deadline passed.",
}
_REPLY_HEADERS: Final = (
    (
        "Idempotency-Key",
        "The same request with the same key joins the reply under way, for some "
        "time after its connection was lost and after its end.",
    ),
    (
        "Last-Event-ID",
        "With the key: the id of the last event that came; the stream goes on after it.",
    ),
)

_BUSY: Final = "No capacity; retry-after says when to come back."
_RETRIED: Final = ("429", "503")
_RETRY_HEADERS: Final = {
    "retry-after": "When to try again: seconds from now.",
    "retry-after-ms": "The same in milliseconds.",
}
_RATE_PARTS: Final = {
    "remaining": "What is left now of a limit of the key's tenant.",
    "reset": "When all of that limit will be there again.",
    "limit": "What a limit of the key's tenant allows in a minute.",
}
"""By a part of the header's name; the first that it has counts."""


def document(version: str) -> bytes:
    """JSON, for this version of Outrider."""
    types = _types(ALL_ROUTES)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ALL_ROUTES:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    made = {
        "openapi": _VERSION,
        "info": {
            "title": "Outrider",
            "version": version,
            "description": "Text of language models, by the OpenAI API and others.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": _header_components(),
            "securitySchemes": _SCHEMES,
        },
        "security": [{"key": []}, {"x-api-key": []}],
    }
    return msgspec.json.encode(made)


def _types(routes: Iterable[Route]) -> list[type]:
    found: dict[type, None] = {ProvisionalText: None}
    for route in routes:
        found |= dict.fromkeys(
            it for it in (route.request, route.response, *_events(route), route.error) if it
        )
    return list(found)


def _events(route: Route) -> tuple[type, ...]:
    """Types of the data of a stream's events."""
    if route.event is None or isinstance(route.event, type):
        return () if route.event is None else (route.event,)
    return get_args(route.event)


def _operation(route: Route, schema_of: dict[type, dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _name(route),
        "responses": _responses(route, schema_of),
    }
    if route.access is Access.PUBLIC:
        made["security"] = []
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name, _ in _PARAMETER.findall(route.path)
    ]
    if route.event is not None:
        parameters += [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _REPLY_HEADERS
        ]
    if parameters:
        made["parameters"] = parameters
    if route.request is not None:
        made["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schema_of[route.request]}},
        }
    return made


def _name(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_")


def _event(route: Route, schema_of: dict[type, dict[str, Any]]) -> dict[str, Any]:
    """The schema of one event: OpenAPI 3.1 has none for the stream of them, and programs that read
    such a schema take it for each event's."""
    is_reply = route.request is not None
    told = (*_events(route), *((ProvisionalText,) if is_reply else ()), route.error)
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": [schema_of[it] for it in told]},
    }
    if is_reply and isinstance(route.event, type):
        # Streams of one kind of chunk, those of OpenAI's first APIs, have an event at their end.
        data = {"anyOf": [{"const": _DONE}, data]}
    text = {"type": "string"}
    return {
        "type": "object",
        "properties": {"event": text, "id": text, "data": data},
        "required": ["data"],
    }


def _responses(route: Route, schema_of: dict[type, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.response is not None:
        content[route.media_type] = {"schema": schema_of[route.response]}
    if route.event is not None:
        content["text/event-stream"] = {"schema": _event(route, schema_of)}
    made: dict[str, Any] = {}
    limits = rate_header_names(route.rate_words) if route.is_limited else ()
    if content:
        made["200"] = {"description": "What was asked for.", "content": content}
        if limits:
            made["200"]["headers"] = _headers(limits)
    if route.access is Access.PUBLIC:
        return made
    errors = _ERRORS if route.request is None else _ERRORS | _BODY_ERRORS
    busy = str(route.busy_status)
    errors = {busy: _BUSY} | errors
    error = {JSON: {"schema": schema_of[route.error]}}
    for status, description in sorted(errors.items()):
        made[status] = {"description": description, "content": error}
    for status in {busy, *_RETRIED}:
        made[status]["headers"] = _headers(tuple(_RETRY_HEADERS))
    made["429"]["headers"] |= _headers(limits)
    return made


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header_components() -> dict[str, Any]:
    """Headers of answers, all optional: callers without limits get none."""
    named = dict(_RETRY_HEADERS)
    for words in RateWords:
        for name in rate_header_names(words):
            part = next(it for it in _RATE_PARTS if it in name)
            named[name] = _RATE_PARTS[part]
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in named.items()
    }
