"""`outrider tokenize`: files of text to shards of token ids."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outrider.cli.bulk import progress
from outrider.errors import ConfigError
from outrider.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from outrider.bulk.engines.base import Engine
    from outrider.bulk.run import Report, Request
    from outrider.bulk.work.worker import Job
    from outrider.models.vocabulary import Vocabulary

_MAX_TOLD: Final = 20


class EngineName(StrEnum):
    """Who does the work."""

    local = "local"
    ray = "ray"


class Format(StrEnum):
    """Of the shards."""

    parquet = "parquet"
    arrow = "arrow"


class Compression(StrEnum):
    """Of the shards."""

    none = "none"
    lz4 = "lz4"
    zstd = "zstd"


def tokenize(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help=".txt (one document), .jsonl, .parquet, .txt.gz, .jsonl.gz; patterns too.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the shards.")],
    model: Annotated[str, typer.Option(help="Model whose vocabulary to use.")] = "",
    vocabulary: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or .gguf file instead of a model.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="auto, tokenizers (the reference), or a fast package.")
    ] = "auto",
    field: Annotated[
        str, typer.Option(help="Field of JSON objects, or Parquet column, with the text.")
    ] = "text",
    format: Annotated[Format, typer.Option(help="Of the shards.")] = Format.parquet,
    compression: Annotated[Compression, typer.Option(help="Of the shards.")] = Compression.none,
    shard_mb: Annotated[
        float, typer.Option(help="Text in a shard, MiB, about; longer texts are cut.")
    ] = 16.0,
    token_offsets: Annotated[
        bool, typer.Option("--token-offsets", help="Tell each token's first byte too.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Worker processes; 0: one per core.")] = 0,
    engine: Annotated[EngineName, typer.Option(help="Who does the work.")] = EngineName.local,
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it Ray runs on this machine.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run ended.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Tell how long documents are, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Encode files in bulk, on all cores; the output is the same whoever does the work.

    Exit status: 0 if every text is in the output, 1 if not (what is missing is told), 130 after
    Ctrl-C; then, and after anything else that ends it, --resume goes on.
    """
    configure_logging("tokenize", "warning")
    _check_pyarrow()
    from outrider.bulk import run, scan
    from outrider.bulk.plan.settings import Settings

    shard_bytes = int(shard_mb * (1 << 20))
    settings = Settings(format.value, compression.value, field, shard_bytes, token_offsets)
    paths = scan.expand(files)
    loaded, name = _vocabulary(model, vocabulary, backend)
    request = run.Request(paths, out, settings, loaded, name, resume)
    make = _maker(engine, workers or len(os.sched_getaffinity(0)), ray_address)
    begin = time.monotonic()
    report = _run(request, make, quiet=as_json)
    _tell(report, out, time.monotonic() - begin, with_stats=stats, as_json=as_json)
    raise typer.Exit(0 if report.is_whole else 1)


def _check_pyarrow() -> None:
    """Raises ConfigError without it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("pyarrow is not installed: pip install 'outrider[bulk]'")


def _vocabulary(model: str, file: Path | None, backend: str) -> tuple[Vocabulary, str]:
    """And the name of the backend that it is used with."""
    from outrider.bulk import vocabularies

    if file is not None:
        loaded, guarded = vocabularies.of_file(file, backend)
    else:
        loaded, guarded = vocabularies.of_model(model, backend)
    return loaded, guarded.name


def _maker(engine: EngineName, workers: int, ray_address: str | None) -> Callable[[Job], Engine]:
    if engine is EngineName.ray:
        from outrider.bulk.engines.ray_data import RayEngine

        return lambda job: RayEngine(job, workers, ray_address)
    from outrider.bulk.engines.local import LocalEngine

    return lambda job: LocalEngine(job, workers)


def _run(request: Request, make: Callable[[Job], Engine], *, quiet: bool) -> Report:
    from outrider.bulk.run import run

    try:
        with progress.shown(quiet=quiet) as show:
            return run(request, make, show)
    except KeyboardInterrupt:
        message = f"stopped; finished shards are kept in {request.folder}: go on with --resume"
        print(f"outrider tokenize: {message}", file=sys.stderr)
        raise


def _tell(
    report: Report, folder: Path, elapsed_s: float, *, with_stats: bool, as_json: bool
) -> None:
    from outrider.bulk.statistics import length_percentiles

    lengths = length_percentiles(folder, report.names) if with_stats else {}
    troubles = [f"shard {one.shard.number}: {one.why}" for one in report.given_up]
    troubles += [str(problem) for problem in report.problems]
    num_troubles = report.num_problems + len(report.given_up)
    if as_json:
        print(json.dumps(_as_object(report, elapsed_s, lengths, troubles), ensure_ascii=False))
        return
    _tell_counts(report, folder, elapsed_s)
    if lengths:
        print("tokens per document: " + ", ".join(f"{k} {n:,}" for k, n in lengths.items()))
    for trouble in troubles[:_MAX_TOLD]:
        print(f"outrider tokenize: {trouble}", file=sys.stderr)
    if num_troubles > _MAX_TOLD:
        print(f"outrider tokenize: {num_troubles} problems in all", file=sys.stderr)


def _tell_counts(report: Report, folder: Path, elapsed_s: float) -> None:
    counts = report.counts
    print(
        f"{counts.documents:,} documents, {counts.bytes:,} bytes, {counts.tokens:,} tokens "
        f"({counts.bytes / max(1, counts.tokens):.2f} bytes each) in {len(report.names)} of "
        f"{report.total_shards} shards in {folder}"
        if report.names or not report.total_shards
        else f"{counts.tokens:,} tokens in the finished shards in {folder}"
    )
    print(f"{elapsed_s:.1f} s, {report.num_new_tokens / max(elapsed_s, 1e-9):,.0f} tokens/s")


def _as_object(
    report: Report, elapsed_s: float, lengths: dict[str, int], troubles: list[str]
) -> dict[str, object]:
    counts = report.counts
    return {
        "documents": counts.documents,
        "rows": counts.rows,
        "bytes": counts.bytes,
        "chars": counts.chars,
        "tokens": counts.tokens,
        "bytes_per_token": counts.bytes / max(1, counts.tokens),
        "tokens_per_s": report.num_new_tokens / max(elapsed_s, 1e-9),
        "elapsed_s": elapsed_s,
        "tokens_per_document": lengths,
        "shards": report.names,
        "num_problems": report.num_problems + len(report.given_up),
        "problems": troubles,
    }
