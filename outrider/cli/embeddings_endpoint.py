"""One request for vectors to `/v1/embeddings`, of a mesh here or of any other endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outrider.cli import edge_choice
from outrider.cli.local import development_key
from outrider.cli.local.state import running_mesh
from outrider.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)

MAX_TEXTS: Final = 2048
"""Most texts of one request."""
_MAX_ANSWER_BYTES: Final = 256 << 20
_MAX_ERROR_BYTES: Final = 1 << 16
_BUSY: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and key of an endpoint."""

    url: str
    """Base URL of the API, such as http://HOST:PORT/v1."""
    key: str
    timeout_s: float = 600.0

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer. Raises InvalidRequestError if the endpoint refuses
        it as invalid, FrameTooLargeError if the body is too large, OverloadedError,
        UnavailableError, and OutriderError with the endpoint's message for any other error."""
        # Imported here: other commands do without.
        import http.client
        import urllib.error
        import urllib.request

        from outrider.cli.early_answers import opener

        if not self.url.startswith(("http://", "https://")):
            raise InvalidRequestError(f"--url takes http://HOST:PORT/v1, not {self.url!r}")
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        url = f"{self.url.rstrip('/')}/embeddings"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with opener().open(request, timeout=self.timeout_s) as answer:
                found: dict[str, Any] = json.loads(answer.read(_MAX_ANSWER_BYTES))
                return found
        except urllib.error.HTTPError as error:
            why = _why(error.code, error.read(_MAX_ERROR_BYTES))
            raise _error_of(error.code, why) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnavailableError(f"{url} does not answer: {error}") from error


def endpoint(
    url: str, key_file: Path | None, api_key: str | None, folder: Path, timeout_s: float = 600.0
) -> Endpoint:
    """The endpoint at `url`, or the mesh of `folder`. Raises UnavailableError without one."""
    # The key of the environment goes to nobody's endpoint.
    is_given = key_file is not None or api_key is not None
    key = edge_choice.given_key(key_file, api_key) if is_given or not url else ""
    if not url:
        url = _local_url(folder)
        key = key or development_key.read(folder)
    return Endpoint(url, key, timeout_s)


def _local_url(folder: Path) -> str:
    mesh = running_mesh(folder)
    if mesh is None:
        raise UnavailableError(
            f"no mesh is up in {folder}; start one with: outrider up --model all-minilm-l6-v2"
        )
    port = mesh.service("edge").get("http_port")
    if not port:
        raise UnavailableError("the mesh here has no HTTP; start it without --http-port -1")
    return f"http://{mesh.host}:{port}/v1"


def _error_of(status: int, why: str) -> OutriderError:
    if status == 400:
        return InvalidRequestError(why)
    if status == FrameTooLargeError.http_status:
        return FrameTooLargeError(why)
    return OverloadedError(why) if status in _BUSY else OutriderError(why)


def _why(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the edge answers {status}"
