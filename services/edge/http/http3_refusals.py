"""Gives refusals of the HTTP/3 server the wording of the application's own (pure, except for
request ids)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from outrider.errors import OutriderError, SlowRequestError, UnavailableError
from services.edge.http.exchange import JSON, own_headers, request_id_of
from services.edge.http.http_errors import headers_of
from services.edge.http.origins import AllowedOrigins
from services.edge.http.paths import normal_path
from services.edge.http.routes import error_answer
from services.edge.http3.messages import Refusal, Request

_ERRORS: Final[dict[int, type[OutriderError]]] = {408: SlowRequestError, 503: UnavailableError}
"""By status; others are of requests that no client of an API sends."""


def worded(origins: AllowedOrigins, refusal: Refusal, request: Request) -> Refusal:
    """A refusal in the shape of the API that the path belongs to, shown to pages of allowed
    origins; see services.edge.http3.server.Word."""
    kind = _ERRORS.get(refusal.status)
    if kind is None:
        return refusal
    error = kind(refusal.text, retry_delay_ms=1000 * refusal.retry_after_s)
    stated = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    request_id = request_id_of(stated.get("x-request-id", ""))
    fields = own_headers(request_id)
    fields += [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
    return replace(
        refusal,
        text=error_answer(normal_path(request.path), error, request_id)[1].decode(),
        retry_after_s=0,  # among the fields
        content_type=JSON.encode(),
        fields=(*fields, *origins.shared(stated.get("origin", ""), fields)),
    )
