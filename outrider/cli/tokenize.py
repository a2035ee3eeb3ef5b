"""`outrider tokenize`: files of text to shards of token ids."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outrider.cli.bulk_executors import ExecutorName, ExecutorOption, RayAddress
from outrider.cli.bulk_progress import shown
from outrider.cli.operator import (
    TRUST_DOMAIN,
    Ca,
    Certificate,
    Plaintext,
    PrivateKey,
    TrustDomain,
)
from outrider.cli.tokenizer_service import TokenizerServices
from outrider.errors import ConfigError
from outrider.extras import advice_for
from outrider.telemetry.logs import configure_logging
from outrider.tls.config import TlsConfig

if TYPE_CHECKING:
    from outrider.bulk.run import Executor, RunReport, RunRequest
    from outrider.bulk.vocabularies import LoadedVocabulary
    from outrider.bulk.worker import BulkJob
    from outrider.tokenization.backends.base import Backend


_MAX_LISTED: Final = 20
"""Problems that are printed one by one."""


class Format(StrEnum):
    """Format of the shards."""

    parquet = "parquet"
    arrow = "arrow"


class Compression(StrEnum):
    """Compression of the shards."""

    none = "none"
    lz4 = "lz4"
    zstd = "zstd"


def tokenize(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files to encode: .txt (one document), .jsonl, .parquet, .txt.gz, .jsonl.gz. "
            "Patterns such as *.jsonl work too.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the output files (shards).")],
    model: Annotated[
        str, typer.Option(help="Model that has the vocabulary; default: the default model.")
    ] = "",
    vocabulary: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or .gguf file, instead of a model.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(help="`auto`, `tokenizers` (the reference), or the name of a fast package."),
    ] = "auto",
    field: Annotated[
        str, typer.Option(help="Field of JSON objects, or Parquet column, that has the text.")
    ] = "text",
    format: Annotated[Format, typer.Option(help="Format of the shards.")] = Format.parquet,
    compression: Annotated[
        Compression, typer.Option(help="Compression of the shards.")
    ] = Compression.none,
    shard_mb: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=4096,
            help="Approximate text in a shard, in MiB; longer texts are split. Default: 16, or "
            "less if that would make fewer than 16 shards.",
        ),
    ] = None,
    token_offsets: Annotated[
        bool, typer.Option("--token-offsets", help="Add the position of each token's first byte.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Number of worker processes; 0: one per core.")
    ] = 0,
    service: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="HOST:PORT, dns:HOST:PORT or srv:NAME of a tokenizer service, for texts above "
            "65,536 characters; what it does not do is done here. Repeat it for several.",
        ),
    ] = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    ca: Ca = None,
    trust_domain: TrustDomain = TRUST_DOMAIN,
    plaintext: Plaintext = False,
    executor: ExecutorOption = ExecutorName.local,
    ray_address: RayAddress = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where an earlier run ended.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print the lengths of the documents, in tokens.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Turn files of text into token ids, on all cores.

    Exit status: 0 if every text is in the output, 1 if some are missing (they are listed), 130
    after Ctrl-C. --resume continues a run that was interrupted.
    """
    configure_logging("tokenize", "warning")
    _check_pyarrow()
    from outrider.bulk import run, scan
    from outrider.bulk.plan.shards import DEFAULT_SHARD_BYTES, SMALL_JOB_SHARDS, BulkSettings

    settings = BulkSettings(
        format=format.value,
        compression=compression.value,
        field=field,
        shard_bytes=DEFAULT_SHARD_BYTES if shard_mb is None else int(shard_mb * (1 << 20)),
        min_shards=SMALL_JOB_SHARDS if shard_mb is None else 1,
        token_offsets=token_offsets,
    )
    paths = scan.expand(files)
    loaded = _vocabulary(model, vocabulary, backend)
    request = run.RunRequest(
        paths=paths,
        folder=out,
        settings=settings,
        vocabulary=loaded.vocabulary,
        rule=loaded.rule,
        backend=loaded.backend.name,
        resume=resume,
        elsewhere=TokenizerServices(
            tuple(service),
            loaded.model,
            TlsConfig(certificate, private_key, ca, trust_domain, plaintext),
        )
        if service
        else None,
    )
    num_workers = workers or len(os.sched_getaffinity(0))
    make = _executor_maker(executor, num_workers, ray_address, loaded.backend.fast)
    begin = time.monotonic()
    report = _run(request, make, quiet=as_json)
    _print_report(report, out, time.monotonic() - begin, with_stats=stats, as_json=as_json)
    raise typer.Exit(0 if report.is_whole else 1)


def _check_pyarrow() -> None:
    """Raises ConfigError without it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(advice_for("pyarrow"))


def _vocabulary(model: str, file: Path | None, backend: str) -> LoadedVocabulary:
    from outrider.bulk import vocabularies

    if file is not None:
        return vocabularies.of_file(file, backend)
    return vocabularies.of_model(model, backend)


def _executor_maker(
    executor: ExecutorName, workers: int, ray_address: str | None, fast: Backend | None
) -> Callable[[BulkJob], Executor]:
    if executor is ExecutorName.ray:
        from outrider.bulk.ray_executor import RayExecutor
        from outrider.bulk.worker import BulkWorker

        return lambda job: RayExecutor(partial(BulkWorker, job), workers, ray_address)
    from outrider.bulk.local_executor import LocalExecutor

    return lambda job: LocalExecutor(job, workers, fast)


def _run(request: RunRequest, make: Callable[[BulkJob], Executor], *, quiet: bool) -> RunReport:
    from outrider.bulk.run import run

    try:
        with shown("tokenizing", quiet=quiet) as show:
            return run(request, make, show)
    except KeyboardInterrupt:
        message = f"stopped; finished shards are kept in {request.folder}: continue with --resume"
        print(f"outrider tokenize: {message}", file=sys.stderr)
        raise


def _print_report(
    report: RunReport, folder: Path, elapsed_s: float, *, with_stats: bool, as_json: bool
) -> None:
    from outrider.bulk.folder import length_percentiles

    lengths = length_percentiles(folder, report.names) if with_stats else {}
    problems = [f"shard {one.shard.number}: {one.reason}" for one in report.failed]
    problems += [str(problem) for problem in report.problems]
    num_problems = report.num_problems + len(report.failed)
    if as_json:
        print(json.dumps(_as_object(report, elapsed_s, lengths, problems), ensure_ascii=False))
        return
    _print_counts(report, folder, elapsed_s)
    if report.num_elsewhere:
        print(f"{report.num_elsewhere:,} long texts by a tokenizer service")
    if lengths:
        print("tokens per document: " + ", ".join(f"{k} {n:,}" for k, n in lengths.items()))
    for problem in problems[:_MAX_LISTED]:
        print(f"outrider tokenize: {problem}", file=sys.stderr)
    if num_problems > _MAX_LISTED:
        print(f"outrider tokenize: {num_problems} problems in all", file=sys.stderr)


def _print_counts(report: RunReport, folder: Path, elapsed_s: float) -> None:
    counts = report.counts
    print(
        f"{counts.documents:,} documents, {counts.bytes:,} bytes, {counts.tokens:,} tokens "
        f"({counts.bytes / max(1, counts.tokens):.2f} bytes each) in "
        f"{len(report.names)} {'shard' if len(report.names) == 1 else 'shards'} in {folder}"
        if report.names or not report.total_shards
        else f"{counts.tokens:,} tokens in the finished shards in {folder}"
    )
    print(f"{elapsed_s:.1f} s, {report.num_new_tokens / max(elapsed_s, 1e-9):,.0f} tokens/s")


def _as_object(
    report: RunReport, elapsed_s: float, lengths: dict[str, int], problems: list[str]
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
        "by_service": report.num_elsewhere,
        "shards": report.names,
        "num_problems": report.num_problems + len(report.failed),
        "problems": problems,
    }
