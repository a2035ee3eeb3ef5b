"""Whole runs: equal to the reference, equal to each other, and resumable anywhere."""

from __future__ import annotations

import fcntl
import json
import random
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.bulk import worker
from outrider.bulk.folder import JOURNAL, MANIFEST, length_percentiles
from outrider.bulk.plan.shards import BulkSettings
from outrider.bulk.run import RunProgress
from outrider.errors import InvalidRequestError, OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import packages
from outrider.tokenization.backends.base import Batch, Reference
from tests.bulk.making import contents, rows, tokenize
from tests.models import corpus

pytestmark = pytest.mark.model
SMALL = BulkSettings(shard_bytes=4000)
NUM_TEXTS = len(corpus.LANGUAGES) + len(corpus.CODE) + len(corpus.EMOJI)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A long text, lines, small texts, and two that are wrong."""
    folder = tmp_path_factory.mktemp("input")
    rng = random.Random(1)
    texts = [*corpus.LANGUAGES, *corpus.CODE, *corpus.EMOJI]
    long = "".join(rng.choice(texts) + rng.choice([" ", "\n", "\n\n"]) for _ in range(300))
    (folder / "a-long.txt").write_text(long)
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "b.jsonl").write_text("\n".join([*lines, "wrong", *lines]))
    (folder / "c.txt").write_text("")
    (folder / "d.txt").write_bytes(b"\xff")
    (folder / "e.txt").write_text(texts[0])
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def whole(
    files: list[Path], vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What a run that nobody disturbs writes."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    report = tokenize(vocabulary, files, folder, SMALL)
    assert report.total_shards > 8 and len(report.names) == report.total_shards
    assert not report.is_whole and report.num_problems == 2
    return folder


def test_the_ids_are_the_references(files: list[Path], whole: Path, vocabulary: Vocabulary) -> None:
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows(whole):
        found.setdefault((Path(row["source"]).name, row["record"]), []).extend(row["ids"])
    lines = files[1].read_text().splitlines()
    expected = {("b.jsonl", n): json.loads(x)["text"] for n, x in enumerate(lines) if x != "wrong"}
    texts = {("a-long.txt", 0): files[0].read_text(), ("c.txt", 0): "", ("e.txt", 0): ""}
    texts["e.txt", 0] = files[4].read_text()
    assert found == {key: vocabulary.encode(text) for key, text in (texts | expected).items()}
    assert len([row for row in rows(whole) if Path(row["source"]).name == "a-long.txt"]) > 3


def test_problems_are_in_the_manifest(whole: Path) -> None:
    manifest = json.loads((whole / MANIFEST).read_text())
    told = [problem for shard in manifest["shards"] for problem in shard["problems"]]
    assert [(Path(p["source"]).name, p["record"]) for p in told] == [
        ("b.jsonl", NUM_TEXTS),
        ("d.txt", None),
    ]
    assert not (whole / JOURNAL).exists()


def test_the_order_of_the_work_does_not_show(
    files: list[Path], whole: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tokenize(vocabulary, files, tmp_path, SMALL, rearranged=lambda shards: shards[::-1])
    assert contents(tmp_path) == contents(whole)


def test_a_run_that_ends_anywhere_can_go_on(
    files: list[Path], whole: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Ended after one more shard each time, with what a killed worker and a killed writer of the
    journal leave."""
    done: list[int] = []

    def stop(progress: RunProgress) -> None:
        if progress.num_shards > len(done):
            done.append(progress.num_shards)
            raise KeyboardInterrupt

    for _ in range(100):
        try:
            tokenize(vocabulary, files, tmp_path, SMALL, resume=True, on_progress=stop)
            break
        except KeyboardInterrupt:
            (tmp_path / "shard-000003.parquet.0123.part").write_bytes(b"half")
            with (tmp_path / JOURNAL).open("a") as journal:
                journal.write('{"number": 5, "na')
    assert len(done) == len(list(whole.glob("shard-*")))
    assert contents(tmp_path) == contents(whole)


def test_a_finished_run_does_nothing_again_and_makes_what_is_gone(
    files: list[Path], whole: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tokenize(vocabulary, files, tmp_path, SMALL)
    report = tokenize(vocabulary, files, tmp_path, SMALL, resume=True)
    assert report.num_new_tokens == 0 and report.num_problems == 2
    (tmp_path / "shard-000001.parquet").unlink()
    (tmp_path / "shard-000002.parquet").write_bytes(b"cut off")
    report = tokenize(vocabulary, files, tmp_path, SMALL, resume=True)
    assert 0 < report.num_new_tokens < report.counts.tokens
    assert contents(tmp_path) == contents(whole)


def test_a_folder_in_use_is_left_alone(
    files: list[Path], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tokenize(vocabulary, files, tmp_path, SMALL)
    before = contents(tmp_path)
    with pytest.raises(InvalidRequestError, match="--resume"):
        tokenize(vocabulary, files, tmp_path, SMALL)
    with pytest.raises(InvalidRequestError, match="another run"):
        tokenize(vocabulary, files[1:], tmp_path, SMALL, resume=True)
    assert contents(tmp_path) == before
    with (tmp_path / JOURNAL).open("a") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(InvalidRequestError, match="another run writes"):
            tokenize(vocabulary, files, tmp_path, SMALL, resume=True)


def test_progress_counts_to_the_end(
    files: list[Path], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    seen: list[RunProgress] = []
    tokenize(vocabulary, files, tmp_path, SMALL, on_progress=seen.append)
    assert [p.num_shards for p in seen] == list(range(seen[0].total_shards + 1))
    assert seen[-1].num_bytes == seen[-1].total_bytes and seen[0].num_bytes == 0
    assert seen[-1].counts.documents == 3 + 2 * NUM_TEXTS


def test_a_document_in_parts_is_one_document(
    files: list[Path], whole: Path, vocabulary: Vocabulary
) -> None:
    names = sorted(path.name for path in whole.glob("shard-*"))
    longest = len(vocabulary.encode(files[0].read_text()))
    assert length_percentiles(whole, names)["max"] == longest


def test_what_an_unfaithful_backend_wrote_is_discarded(
    files: list[Path], vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(Reference):
        """Right on the first text of a worker, wrong on some later one that is looked at."""

        name = packages.PACKAGES[0]

        def encode(self, text: str) -> array[int]:
            ids = super().encode(text)
            return ids[:-1] if "λόγος" in text else ids

        def encode_batch(self, texts: Sequence[str]) -> Batch:
            return Batch.of(map(self.encode, texts))

    monkeypatch.setattr(worker, "make_backend", lambda _, found: Wrong(found))
    monkeypatch.setattr(worker, "SAMPLE_EVERY", 1)
    with pytest.raises(OutriderError, match="run again with --backend tokenizers"):
        tokenize(vocabulary, files[1:], tmp_path, SMALL, backend=Wrong.name)
    assert list(tmp_path.glob("shard-*")) == []
    report = tokenize(vocabulary, files[1:], tmp_path, SMALL, resume=True)
    assert len(report.names) == report.total_shards
