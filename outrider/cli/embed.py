"""`outrider embed`: the vectors of texts, from a mesh."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from outrider.cli import edge_choice
from outrider.cli.local import development_key
from outrider.cli.local.state import StateDir, default_state_dir, running_mesh
from outrider.errors import InvalidRequestError, OutriderError, UnavailableError

MAX_TEXTS: Final = 2048
"""Of one request; a longer input becomes several."""
_MAX_ANSWER_BYTES: Final = 256 << 20
_MAX_ERROR_BYTES: Final = 1 << 16
_TIMEOUT_S: Final = 600.0
_SHOWN_VALUES: Final = 4


def embed(
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="The texts; without any, one for each line of standard input."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model that embeds; empty: the first that the mesh serves.")
    ] = "",
    dimensions: Annotated[
        int,
        typer.Option(min=0, max=65_536, help="The first so many values of each vector; 0: all."),
    ] = 0,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Leave out what is too long for the model.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each text: index, embedding.")
    ] = False,
    url: Annotated[
        str, typer.Option(help="http://HOST:PORT/v1; default: the mesh of `outrider up`.")
    ] = "",
    key_file: edge_choice.KeyFile = None,
    api_key: edge_choice.ApiKey = None,
    state_dir: StateDir = None,
) -> None:
    """The vector of each text, by a model that embeds (`outrider up --model all-minilm-l6-v2`)."""
    wanted = texts or [line.rstrip("\n") for line in sys.stdin]
    if not wanted:
        raise InvalidRequestError("there is no text; give one, or lines on standard input")
    folder = (state_dir or default_state_dir()).resolve()
    # The key of the environment goes to nobody's endpoint.
    is_given = key_file is not None or api_key is not None
    key = edge_choice.given_key(key_file, api_key) if is_given or not url else ""
    if not url:
        url = _local_url(folder)
        key = key or development_key.read(folder)
    asked: dict[str, Any] = {"encoding_format": "float"}
    asked |= {"model": model} if model else {}
    asked |= {"dimensions": dimensions} if dimensions else {}
    asked |= {"truncate_prompt_tokens": -1} if truncate else {}
    for begin, part in _parts(wanted):
        answer = _post(f"{url.rstrip('/')}/embeddings", {**asked, "input": part}, key)
        for found in answer["data"]:
            _show(begin + found["index"], part[found["index"]], found["embedding"], as_json=as_json)


def _parts(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for begin in range(0, len(texts), MAX_TEXTS):
        yield begin, texts[begin : begin + MAX_TEXTS]


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


def _post(url: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """Raises UnavailableError, and OutriderError with what the edge says."""
    # Imported here: other commands do without.
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError(f"--url takes http://HOST:PORT/v1, not {url!r}")
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read(_MAX_ANSWER_BYTES))
            return found
    except urllib.error.HTTPError as error:
        raise OutriderError(_why(error.code, error.read(_MAX_ERROR_BYTES))) from None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{url} does not answer: {error}") from error


def _why(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the edge answers {status}"


def _show(index: int, text: str, vector: Sequence[float], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"index": index, "embedding": vector}))
        return
    first = ", ".join(f"{value:.4f}" for value in vector[:_SHOWN_VALUES])
    more = ", ..." if len(vector) > _SHOWN_VALUES else ""
    print(f"[{first}{more}]  {len(vector)} values  {text[:60]!r}")
