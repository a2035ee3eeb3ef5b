"""Headers of answers that are no success."""

from __future__ import annotations

import pytest

from outrider import errors
from outrider.errors import OutriderError
from services.edge.http.http_errors import headers_of
from services.edge.http.openai_errors import described


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (
            errors.OverloadedError("x", retry_delay_ms=1001),
            {"retry-after": "2", "retry-after-ms": "1001"},
        ),
        (errors.OverloadedError("x"), {}),
        (errors.DuplicateSessionError("x"), {"x-should-retry": "false"}),
        (errors.PoisonousRequestError("x"), {"x-should-retry": "false"}),
        (errors.UnsupportedModelError("x"), {"x-should-retry": "false"}),
        (errors.EngineError("x"), {}),
        (errors.SlowRequestError("x"), {}),
        (errors.UnauthenticatedError("x"), {"www-authenticate": "Bearer"}),
        (errors.MethodNotAllowedError("x", metadata={"allow": "POST"}), {"allow": "POST"}),
        (OutriderError("x"), {}),
    ],
)
def test_a_client_is_told_when_and_how_to_try_again(
    error: OutriderError, headers: dict[str, str]
) -> None:
    assert headers_of(error) == headers


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.UnauthenticatedError("x"), "authentication_error", "invalid_api_key"),
        (errors.UnknownModelError("x"), "not_found_error", "model_not_found"),
        (errors.PromptTooLongError("x"), "invalid_request_error", "context_length_exceeded"),
        (errors.OverloadedError("x"), "rate_limit_error", "rate_limit_exceeded"),
        (errors.NoReplicaError("x"), "server_error", "no_replica"),
        (errors.KeyReusedError("x"), "invalid_request_error", "key_reused"),
    ],
)
def test_errors_have_the_words_that_clients_look_for(
    error: OutriderError, kind: str, code: str
) -> None:
    shown = described(error).error
    assert (shown.type, shown.code, shown.message) == (kind, code, "x")
