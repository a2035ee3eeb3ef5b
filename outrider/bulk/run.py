"""A bulk run: from names of files to a folder of shards and a report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from outrider.bulk import scan
from outrider.bulk.encoding import EncodeElsewhere
from outrider.bulk.folder import OutputFolder
from outrider.bulk.plan.journal import fingerprint
from outrider.bulk.plan.results import (
    FailedShard,
    ShardOutcome,
    ShardResult,
    TextCounts,
    TextProblem,
    total,
)
from outrider.bulk.plan.shards import BulkSettings, Shard, SourceFile
from outrider.bulk.worker import BulkJob
from outrider.bulk.writing import WRITER
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.cuts import CutRule

_BACKEND_OFF: Final = (
    "the tokenizer backend gave other ids than the reference, so what it wrote was discarded "
    "({why}): run again with --backend {reference}"
)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run."""

    num_shards: int
    total_shards: int
    num_bytes: int
    """Bytes of text in the finished shards, by the plan's estimate."""
    total_bytes: int
    counts: TextCounts
    """Counts of the finished shards, including those of earlier runs."""
    num_earlier_bytes: int
    """The part of `num_bytes` that an earlier run did."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Options of a run."""

    paths: Sequence[str]
    folder: Path
    settings: BulkSettings
    vocabulary: Vocabulary
    rule: CutRule | None
    """For cutting texts of this vocabulary; None if none is proven."""
    backend: str
    """Name of the package that passed the equivalence test; REFERENCE for none."""
    resume: bool = False
    elsewhere: Callable[[Vocabulary], EncodeElsewhere] | None = None
    """As in BulkJob."""


@dataclass(slots=True)
class RunReport:
    """The result of a run."""

    counts: TextCounts
    total_shards: int
    problems: list[TextProblem]
    num_problems: int
    failed: list[FailedShard]
    num_new_tokens: int
    """Tokens of this run only."""
    num_elsewhere: int = 0
    """Long texts of this run that a tokenizer service encoded."""
    names: list[str] = field(default_factory=list)
    """File names of the shards, in order; empty unless all are finished."""

    @property
    def is_whole(self) -> bool:
        """Whether every text of every file is in the output."""
        return not self.num_problems and not self.failed


class Executor(Protocol):
    """Runs shards on several workers: local_executor.py, ray_executor.py."""

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        """The outcome of each shard, in any order. Raises OutriderError if no worker can continue.
        Closing the iterator ends the workers."""

    def close(self) -> None:
        """End everything that it has started."""


@dataclass(frozen=True, slots=True)
class ShardsRequest:
    """A run whose rows are made by any executor."""

    paths: Sequence[str]
    folder: Path
    settings: BulkSettings
    digest: bytes
    """Digest of everything that determines the rows besides texts and settings."""
    facts: Mapping[str, object]
    """More for the manifest."""
    cuts_texts: bool
    """Whether a long text may be cut into parts."""
    resume: bool


def run(
    request: RunRequest,
    make_executor: Callable[[BulkJob], Executor],
    on_progress: Callable[[RunProgress], None] = lambda _: None,
) -> RunReport:
    """Write every shard that is not written yet. Raises OutriderError, OSError, and
    KeyboardInterrupt; shards finished by then are kept."""
    vocabulary, settings, rule = request.vocabulary, request.settings, request.rule
    job = BulkJob(
        str(request.folder), settings, vocabulary, request.backend, rule, request.elsewhere
    )
    shards = ShardsRequest(
        paths=request.paths,
        folder=request.folder,
        settings=settings,
        digest=vocabulary.digest,
        facts={"vocabulary": vocabulary.digest.hex()},
        cuts_texts=rule is not None,
        resume=request.resume,
    )
    # Before the folder is opened, whose lock is this process's alone, and before there are threads.
    with closing(make_executor(job)) as executor:
        return run_shards(shards, executor, on_progress)


def run_shards(
    request: ShardsRequest, executor: Executor, on_progress: Callable[[RunProgress], None]
) -> RunReport:
    """Like `run`, with a given executor."""
    settings = request.settings
    sources, unreadable = scan.find(request.paths, settings)
    shards = scan.plan(sources, settings, cuts_texts=request.cuts_texts)
    identity = fingerprint(sources, settings, request.digest, WRITER)
    with OutputFolder.opened(request.folder, identity, resume=request.resume) as folder:
        num_earlier_tokens = total(folder.finished.values()).tokens
        failed = _work(folder, shards, executor, on_progress)
        report = _report(folder, len(shards), unreadable, failed, num_earlier_tokens)
        if not failed:
            facts = {**request.facts, **_facts(sources, unreadable)}
            report.names = [result.name for result in folder.complete(settings, facts)]
        return report


def _report(
    folder: OutputFolder,
    num_shards: int,
    unreadable: list[TextProblem],
    failed: list[FailedShard],
    num_earlier_tokens: int,
) -> RunReport:
    finished = [result for _, result in sorted(folder.finished.items())]
    problems = [*unreadable, *(p for result in finished for p in result.problems)]
    count = len(unreadable) + sum(result.num_problems for result in finished)
    counts = total(finished)
    num_new = counts.tokens - num_earlier_tokens
    num_elsewhere = sum(result.num_elsewhere for result in finished)
    return RunReport(counts, num_shards, problems, count, failed, num_new, num_elsewhere)


def _work(
    folder: OutputFolder,
    shards: list[Shard],
    executor: Executor,
    on_progress: Callable[[RunProgress], None],
) -> list[FailedShard]:
    left = [shard for shard in shards if shard.number not in folder.finished]
    progress_counter = _ProgressCounter(shards, folder.finished.values())
    on_progress(progress_counter.progress)
    failed: list[FailedShard] = []
    if not left:
        return failed
    with closing(executor.run(left)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, FailedShard):
                failed.append(outcome)
                continue
            if outcome.backend_problem:
                break
            folder.add(outcome)
            on_progress(progress_counter.add(outcome))
        else:
            return failed
    folder.discard()
    raise OutriderError(_BACKEND_OFF.format(why=outcome.backend_problem, reference=REFERENCE))


class _ProgressCounter:
    """Adds up finished shards."""

    def __init__(self, shards: Iterable[Shard], finished: Iterable[ShardResult]) -> None:
        self._bytes = {shard.number: shard.num_bytes for shard in shards}
        self.progress = RunProgress(
            0, len(self._bytes), 0, sum(self._bytes.values()), TextCounts(), 0
        )
        for result in finished:
            self.add(result)
        self.progress = replace(self.progress, num_earlier_bytes=self.progress.num_bytes)

    def add(self, result: ShardResult) -> RunProgress:
        """One more shard is finished."""
        before = self.progress
        self.progress = replace(
            before,
            num_shards=before.num_shards + 1,
            num_bytes=before.num_bytes + self._bytes[result.number],
            counts=before.counts + result.counts,
        )
        return self.progress


def _facts(sources: Sequence[SourceFile], unreadable: Sequence[TextProblem]) -> dict[str, object]:
    return {
        "writer": WRITER,
        "sources": [{"path": one.path, "num_bytes": one.num_bytes} for one in sources],
        "unreadable": [str(problem) for problem in unreadable],
    }
