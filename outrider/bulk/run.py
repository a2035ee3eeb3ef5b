"""A bulk run from names of files to a folder of shards and what is to be said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from outrider.bulk import scan
from outrider.bulk.engines.base import Engine, GivenUp
from outrider.bulk.folder import Folder
from outrider.bulk.plan.journal import fingerprint
from outrider.bulk.plan.results import Counts, Problem, ShardResult, total
from outrider.bulk.plan.settings import Settings
from outrider.bulk.plan.shards import Shard
from outrider.bulk.plan.sources import Source
from outrider.bulk.work.worker import Job
from outrider.bulk.work.writing import WRITER
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.cut_proofs import UnprovenError, prove
from outrider.tokenization.cuts import CutRule

_BACKEND_OFF: Final = (
    "the tokenizer backend gave other ids than the reference, so what it wrote was discarded "
    "({why}): run again with --backend {reference}"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    num_shards: int
    total_shards: int
    num_bytes: int
    """Text of the finished shards, by the plan's reckoning."""
    total_bytes: int
    counts: Counts
    """Of the finished shards, earlier runs' included."""
    num_earlier_bytes: int
    """Of `num_bytes`, what an earlier run did."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to do."""

    paths: Sequence[str]
    folder: Path
    settings: Settings
    vocabulary: Vocabulary
    backend: str
    """Name of the package that passed the gate; REFERENCE for none."""
    resume: bool = False


@dataclass(slots=True)
class Report:
    """What came of a run."""

    counts: Counts
    total_shards: int
    problems: list[Problem]
    num_problems: int
    given_up: list[GivenUp]
    num_new_tokens: int
    """Of this run, earlier ones' not included."""
    names: list[str] = field(default_factory=list)
    """The shards, in order; empty unless all are there."""

    @property
    def is_whole(self) -> bool:
        """Whether every text of every file is in the output."""
        return not self.num_problems and not self.given_up


def rule_of(vocabulary: Vocabulary) -> CutRule | None:
    """Where texts of this vocabulary may be cut; None: nowhere that is proven."""
    try:
        return prove(vocabulary.tokenizer_json)
    except UnprovenError:
        return None


def run(
    request: Request,
    make_engine: Callable[[Job], Engine],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Write every shard that is not written yet. Raises OutriderError, OSError, and
    KeyboardInterrupt; what is finished by then is kept."""
    vocabulary, settings = request.vocabulary, request.settings
    rule = rule_of(vocabulary)
    sources, unreadable = scan.find(request.paths, settings)
    shards = scan.plan(sources, settings, cuts_texts=rule is not None)
    identity = fingerprint(sources, settings, vocabulary.digest, WRITER)
    job = Job(str(request.folder), settings, vocabulary, request.backend, rule)
    with Folder.opened(request.folder, identity, resume=request.resume) as folder:
        num_earlier_tokens = total(folder.finished.values()).tokens
        given_up = _work(folder, shards, job, make_engine, on_progress)
        report = _report(folder, len(shards), unreadable, given_up, num_earlier_tokens)
        if not given_up:
            facts = _facts(sources, vocabulary, unreadable)
            report.names = [result.name for result in folder.complete(settings, facts)]
        return report


def _report(
    folder: Folder,
    num_shards: int,
    unreadable: list[Problem],
    given_up: list[GivenUp],
    num_earlier_tokens: int,
) -> Report:
    finished = [result for _, result in sorted(folder.finished.items())]
    problems = [*unreadable, *(p for result in finished for p in result.problems)]
    count = len(unreadable) + sum(result.num_problems for result in finished)
    counts = total(finished)
    num_new = counts.tokens - num_earlier_tokens
    return Report(counts, num_shards, problems, count, given_up, num_new)


def _work(
    folder: Folder,
    shards: list[Shard],
    job: Job,
    make_engine: Callable[[Job], Engine],
    on_progress: Callable[[Progress], None],
) -> list[GivenUp]:
    left = [shard for shard in shards if shard.number not in folder.finished]
    tally = _Tally(shards, folder.finished.values())
    on_progress(tally.progress)
    given_up: list[GivenUp] = []
    if not left:
        return given_up
    with closing(make_engine(job).run(left)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, GivenUp):
                given_up.append(outcome)
                continue
            if outcome.backend_problem:
                break
            folder.add(outcome)
            on_progress(tally.add(outcome))
        else:
            return given_up
    folder.forget()
    raise OutriderError(_BACKEND_OFF.format(why=outcome.backend_problem, reference=REFERENCE))


class _Tally:
    """Adds up what is finished."""

    def __init__(self, shards: Iterable[Shard], finished: Iterable[ShardResult]) -> None:
        self._bytes = {shard.number: shard.num_bytes for shard in shards}
        self.progress = Progress(0, len(self._bytes), 0, sum(self._bytes.values()), Counts(), 0)
        for result in finished:
            self.add(result)
        self.progress = replace(self.progress, num_earlier_bytes=self.progress.num_bytes)

    def add(self, result: ShardResult) -> Progress:
        """One more shard is finished."""
        before = self.progress
        self.progress = replace(
            before,
            num_shards=before.num_shards + 1,
            num_bytes=before.num_bytes + self._bytes[result.number],
            counts=before.counts + result.counts,
        )
        return self.progress


def _facts(
    sources: Sequence[Source], vocabulary: Vocabulary, unreadable: Sequence[Problem]
) -> dict[str, object]:
    return {
        "vocabulary": vocabulary.digest.hex(),
        "writer": WRITER,
        "sources": [{"path": one.path, "num_bytes": one.num_bytes} for one in sources],
        "unreadable": [str(problem) for problem in unreadable],
    }
