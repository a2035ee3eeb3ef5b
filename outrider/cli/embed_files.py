"""Files of texts to one Parquet file of vectors: `outrider embed FILES -o OUT.parquet`."""

from __future__ import annotations

import base64
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from outrider.backoff import Backoff
from outrider.cli.bulk_progress import shown
from outrider.cli.embeddings_endpoint import Endpoint
from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from outrider.bulk.embedding import EmbeddedTexts, EmbeddingJob
    from outrider.bulk.plan.results import TextProblem
    from outrider.bulk.run import Executor, RunReport

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 30.0
_MAX_LISTED: Final = 20
_SHARD_BYTES: Final = 256 << 10
"""Bytes of text in a shard: half a minute of a small machine's work, which is what a killed run
loses."""


@dataclass(frozen=True, slots=True)
class RayActors:
    """Actors of a Ray cluster that send the requests instead of this process."""

    count: int
    address: str | None
    """Address of the cluster; None: one on this machine, for this run."""


@dataclass(frozen=True, slots=True)
class FilesRequest:
    """Options of a run."""

    paths: Sequence[str]
    out: Path
    model: str
    dimensions: int
    """0: all."""
    values: str
    field: str
    truncate: bool
    resume: bool
    num_requests: int
    """Under way at once, of this process or of each actor."""
    actors: RayActors | None = None

    @property
    def parts(self) -> Path:
        """Folder for finished shards until all are done."""
        return self.out.with_name(f"{self.out.name}.parts")


def embed_files(request: FilesRequest, endpoint: Endpoint) -> bool:
    """Whether every text of every file has its vector. Raises OutriderError, OSError, and
    KeyboardInterrupt; finished shards are kept for `--resume`."""
    from outrider.bulk import scan
    from outrider.bulk.embedding import EmbeddingJob, VectorsWanted, merge
    from outrider.bulk.plan.shards import BulkSettings
    from outrider.bulk.run import ShardsRequest, run_shards

    _check(request)
    ask = EndpointAsk(request, endpoint)
    first = ask(["a"])
    wanted = VectorsWanted(
        model=request.model,
        fingerprint=first.fingerprint,
        dimensions=first.vectors.shape[1],
        values=request.values,
        truncate=request.truncate,
    )
    settings = BulkSettings(field=request.field, shard_bytes=_SHARD_BYTES, texts_are_lines=True)
    shards = ShardsRequest(
        paths=scan.expand(request.paths),
        folder=request.parts,
        settings=settings,
        digest=wanted.digest,
        facts={"model_identity": wanted.fingerprint, "dimensions": wanted.dimensions},
        cuts_texts=False,
        resume=request.resume,
    )
    # Absolute, for actors with another working directory.
    job = EmbeddingJob(request.parts.absolute(), settings, wanted, ask, request.num_requests)
    executor = _executor(job, request.actors)
    began = time.monotonic()
    try:
        with shown("embedding", quiet=False) as show:
            report = run_shards(shards, executor, show)
    except KeyboardInterrupt:
        print(
            f"outrider embed: stopped; finished shards are kept in {request.parts}: continue with "
            "--resume",
            file=sys.stderr,
        )
        raise
    merge(request.parts, report.names, wanted.schema, request.out)
    shutil.rmtree(request.parts)
    _tell(request, report, time.monotonic() - began)
    return report.is_whole


def _executor(job: EmbeddingJob, actors: RayActors | None) -> Executor:
    """Raises ConfigError without Ray."""
    from outrider.bulk.embedding import EmbeddingExecutor, EmbeddingWorker

    if actors is None:
        return EmbeddingExecutor(job)
    from outrider.bulk.ray_executor import RayExecutor

    return RayExecutor(partial(EmbeddingWorker, job), actors.count, actors.address)


def _check(request: FilesRequest) -> None:
    if request.out.suffix != ".parquet":
        raise InvalidRequestError(f"--out names a file that ends with .parquet, not {request.out}")
    if request.out.exists():
        raise InvalidRequestError(f"{request.out} exists already; remove it, or name another")


def _tell(request: FilesRequest, report: RunReport, elapsed_s: float) -> None:
    counts = report.counts
    print(
        f"{counts.rows:,} vectors of {counts.tokens:,} tokens in {request.out}; {elapsed_s:.1f} s, "
        f"{report.num_new_tokens / max(elapsed_s, 1e-9):,.0f} tokens/s"
    )
    for problem in report.problems[:_MAX_LISTED]:
        print(f"outrider embed: {_placed(problem)}", file=sys.stderr)
    if report.num_problems > _MAX_LISTED:
        print(f"outrider embed: {report.num_problems} problems in all", file=sys.stderr)


def _placed(problem: TextProblem) -> str:
    """With the line's number, counted from 1, as editors and compilers do."""
    where = problem.source if problem.record is None else f"{problem.source}:{problem.record + 1}"
    return f"{where}: {problem.message}"


class EndpointAsk:
    """Requests to the endpoint, tried again while it is busy or away. Pickles, its key included."""

    def __init__(self, request: FilesRequest, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._body: dict[str, Any] = {"encoding_format": "base64"}
        self._body |= {"model": request.model} if request.model else {}
        self._body |= {"dimensions": request.dimensions} if request.dimensions else {}
        self._body |= {"truncate_prompt_tokens": -1} if request.truncate else {}

    def __call__(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Raises OutriderError."""
        from outrider.bulk.embedding import EmbeddedTexts

        answer = self._answer({**self._body, "input": list(texts)})
        try:
            rows = sorted(answer["data"], key=lambda row: int(row["index"]))
            vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows]
            return EmbeddedTexts(
                np.stack(vectors),
                int(answer["usage"]["prompt_tokens"]),
                str(answer.get("system_fingerprint") or "unknown"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OutriderError(f"the endpoint answers no vectors: {error}") from error

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        for _ in range(_TRIES - 1):
            try:
                return self._endpoint.ask(body)
            except (OverloadedError, UnavailableError):
                time.sleep(backoff.next_s())
        return self._endpoint.ask(body)
