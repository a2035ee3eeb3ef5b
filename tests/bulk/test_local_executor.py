"""Real worker processes: killed, fed with what kills them, and ended with the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from outrider.bulk import fork_server
from outrider.bulk.local_executor import LocalExecutor
from outrider.bulk.plan.assignments import MAX_DEATHS
from outrider.bulk.plan.results import FailedShard
from outrider.bulk.plan.shards import BulkSettings, Shard
from outrider.bulk.run import RunProgress
from outrider.bulk.worker import BulkJob
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from tests.bulk.making import contents, tokenize
from tests.models import corpus

pytestmark = pytest.mark.model


@pytest.fixture(params=["forked", "executed"], autouse=True)
def started(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which workers come to be."""
    monkeypatch.setattr(fork_server, "_may_fork", lambda: request.param == "forked")


SMALL = BulkSettings(shard_bytes=2000)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "a.txt"
    path.write_text("\n".join(corpus.LANGUAGES * 8))
    return path


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Watched(LocalExecutor):
    """Remembers every worker."""

    def __init__(self, job: BulkJob, num_workers: int) -> None:
        super().__init__(job, num_workers)
        self.seen: set[int] = set()

    def _ready(self) -> list[int]:
        self.seen.update(self.pids)
        return super()._ready()


def test_killed_workers_cost_nothing_but_time(
    file: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    engines: list[Watched] = []

    def make(job: BulkJob) -> Watched:
        engines.append(Watched(job, 2))
        return engines[0]

    killed: list[int] = []

    def kill(progress: RunProgress) -> None:
        if progress.num_shards in (1, 4):
            killed.append(engines[0].pids[0])
            os.kill(killed[-1], signal.SIGKILL)

    report = tokenize(vocabulary, [file], tmp_path / "a", SMALL, engine=make, on_progress=kill)
    assert report.is_whole and len(killed) == 2 and len(engines[0].seen) >= 3
    assert not any(map(is_alive, engines[0].seen))
    tokenize(vocabulary, [file], tmp_path / "b", SMALL)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def job(vocabulary: Vocabulary, folder: Path) -> BulkJob:
    return BulkJob(str(folder), SMALL, vocabulary, REFERENCE, None)


def test_a_shard_that_kills_its_workers_is_given_up(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """A shard that no worker can read stands for one that ends its process."""

    class Deadly(Shard):
        def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
            return os._exit, (9,)

    good = [Shard(number, (), 1) for number in (0, 2)]
    with closing(LocalExecutor(job(vocabulary, tmp_path), 1)) as engine:
        outcomes = list(engine.run([good[0], Deadly(1, (), 1), good[1]]))
    (failed,) = (one for one in outcomes if isinstance(one, FailedShard))
    assert failed.shard.number == 1 and "status 9" in failed.reason
    done = {one.number for one in outcomes if not isinstance(one, FailedShard)}
    assert done == {0, 2} and MAX_DEATHS == 3
    assert engine.pids == []


def test_a_folder_that_cannot_be_written_ends_the_run(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    with (
        closing(LocalExecutor(job(vocabulary, tmp_path / "gone"), 1)) as engine,
        pytest.raises(OutriderError, match="shard 0 cannot be written"),
    ):
        list(engine.run([Shard(0, (), 1)]))
    assert engine.pids == []


def test_a_run_that_is_given_up_ends_its_workers(
    file: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    engines: list[Watched] = []

    def make(job: BulkJob) -> Watched:
        engines.append(Watched(job, 2))
        return engines[0]

    def stop(progress: RunProgress) -> None:
        if progress.num_shards:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(vocabulary, [file], tmp_path, SMALL, engine=make, on_progress=stop)
    assert not any(map(is_alive, engines[0].seen))
    assert not list(tmp_path.glob("*.part"))
