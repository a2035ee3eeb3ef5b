"""`outrider embed`: the vectors of texts, from a mesh."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from outrider.cli import edge_choice
from outrider.cli.bulk_executors import ExecutorName, ExecutorOption, RayAddress
from outrider.cli.embeddings_endpoint import MAX_TEXTS, endpoint
from outrider.cli.local.state import StateDir, default_state_dir
from outrider.errors import ConfigError, InvalidRequestError
from outrider.extras import advice_for

_FILES_TIMEOUT_S: Final = 120.0
"""Timeout of one request of a bulk run; it is then sent again."""
_SHOWN_VALUES: Final = 4


class Values(StrEnum):
    """How a file has the values of vectors."""

    f32 = "f32"
    f16 = "f16"
    i8 = "i8"


def embed(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts to embed; default: the lines of standard input. With --out, files of "
            "texts: .txt (a text per line), .jsonl, .parquet, .txt.gz, .jsonl.gz, and patterns."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Embed files of texts, and write the vectors to this .parquet file."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="An embedding model; default: the first one that the mesh serves.")
    ] = "",
    dimensions: Annotated[
        int,
        typer.Option(
            min=0, max=65_536, help="Number of leading values to keep of each vector; 0: all."
        ),
    ] = 0,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object for each text, with index and embedding."),
    ] = False,
    field: Annotated[
        str, typer.Option(help="Field of JSON objects, or Parquet column, that has the text.")
    ] = "text",
    values: Annotated[
        Values, typer.Option(help="Number format of the vectors in --out.")
    ] = Values.f32,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where an earlier run to --out ended.")
    ] = False,
    requests: Annotated[
        int, typer.Option(min=1, max=256, help="Number of requests at once, with --out.")
    ] = 8,
    executor: ExecutorOption = ExecutorName.local,
    workers: Annotated[
        int,
        typer.Option(
            min=0, max=1024, help="Number of Ray actors; 0: one per core of this machine."
        ),
    ] = 0,
    ray_address: RayAddress = None,
    url: Annotated[
        str,
        typer.Option(
            help="Address of the API, http://HOST:PORT/v1; default: the mesh of `outrider up`."
        ),
    ] = "",
    key_file: edge_choice.KeyFile = None,
    api_key: edge_choice.ApiKey = None,
    state_dir: StateDir = None,
) -> None:
    """Turn texts into vectors, with an embedding model (`outrider up --model all-minilm-l6-v2`).

    With --out, the texts come from files, and one Parquet file gets id, source and vector of each.
    Exit status 1 if a text has no vector (it is listed as file:line), 130 after Ctrl-C. --resume
    continues a run that was interrupted.
    """
    folder = (state_dir or default_state_dir()).resolve()
    if out is not None:
        _check_pyarrow()
        from outrider.cli.embed_files import FilesRequest, RayActors, embed_files

        if not texts:
            raise InvalidRequestError("--out takes files of texts: outrider embed FILE... -o OUT")
        request = FilesRequest(
            paths=texts,
            out=out,
            model=model,
            dimensions=dimensions,
            values=values.value,
            field=field,
            truncate=truncate,
            resume=resume,
            num_requests=requests,
            actors=RayActors(workers or len(os.sched_getaffinity(0)), ray_address)
            if executor is ExecutorName.ray
            else None,
        )
        is_whole = embed_files(request, endpoint(url, key_file, api_key, folder, _FILES_TIMEOUT_S))
        raise typer.Exit(0 if is_whole else 1)
    wanted = texts or [line.rstrip("\n") for line in sys.stdin]
    if not wanted:
        raise InvalidRequestError("there is no text; give one, or lines on standard input")
    asked: dict[str, Any] = {"encoding_format": "float"}
    asked |= {"model": model} if model else {}
    asked |= {"dimensions": dimensions} if dimensions else {}
    asked |= {"truncate_prompt_tokens": -1} if truncate else {}
    whom = endpoint(url, key_file, api_key, folder)
    for begin, part in _parts(wanted):
        answer = whom.ask({**asked, "input": part})
        for found in answer["data"]:
            _show(begin + found["index"], part[found["index"]], found["embedding"], as_json=as_json)


def _check_pyarrow() -> None:
    """Raises ConfigError without it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(advice_for("pyarrow"))


def _parts(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for begin in range(0, len(texts), MAX_TEXTS):
        yield begin, texts[begin : begin + MAX_TEXTS]


def _show(index: int, text: str, vector: Sequence[float], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"index": index, "embedding": vector}))
        return
    first = ", ".join(f"{value:.4f}" for value in vector[:_SHOWN_VALUES])
    more = ", ..." if len(vector) > _SHOWN_VALUES else ""
    print(f"[{first}{more}]  {len(vector)} values  {text[:60]!r}")
