"""Shards of vectors: in order and the same bytes, whatever answers first; bad texts by name."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from outrider.bulk.embedding import (
    EmbeddedTexts,
    EmbeddingExecutor,
    EmbeddingJob,
    EmbeddingWorker,
    VectorsWanted,
    merge,
)
from outrider.bulk.folder import MANIFEST
from outrider.bulk.plan.results import ShardOutcome
from outrider.bulk.plan.shards import BulkSettings, Shard
from outrider.bulk.run import RunReport, ShardsRequest, run_shards
from outrider.cli import embeddings_endpoint
from outrider.cli.embed_files import EndpointAsk, FilesRequest
from outrider.errors import FrameTooLargeError, InvalidRequestError, OutriderError, UnavailableError

SETTINGS = BulkSettings(shard_bytes=2000, texts_are_lines=True)
LINES = [f"text {number} of many" for number in range(600)]


class Endpoint:
    """The vector of a text is its length, and what it ends with."""

    def __init__(self, fingerprint: str = "fp_1", ends_after: int = 1 << 30) -> None:
        self.fingerprint = fingerprint
        self.texts: list[str] = []
        self._ends_after = ends_after
        self._lock = threading.Lock()
        self._is_first = True
        self._others = threading.Event()

    def ask(self, texts: Sequence[str]) -> EmbeddedTexts:
        with self._lock:
            self.texts += texts
            is_first, self._is_first = self._is_first, False
            if len(self.texts) > self._ends_after:
                raise UnavailableError("it is gone")
        if is_first:
            # What is asked first is answered last, where there is anything else to ask.
            self._others.wait(0.2)
        else:
            self._others.set()
        for place, text in enumerate(texts):
            if "wrong" in text:
                raise InvalidRequestError(f"input[{place}]: an input has too many tokens")
        rows = [[len(text), ord(text[-1]) / 128, -1.0] for text in texts]
        return EmbeddedTexts(np.array(rows, np.float32), 3 * len(texts), self.fingerprint)


WANTED = VectorsWanted("e", "fp_1", 3)


def request_of(
    files: Sequence[Path], folder: Path, wanted: VectorsWanted, *, resume: bool = False
) -> ShardsRequest:
    return ShardsRequest(
        paths=[str(path) for path in files],
        folder=folder,
        settings=SETTINGS,
        digest=wanted.digest,
        facts={},
        cuts_texts=False,
        resume=resume,
    )


def embed(
    files: Sequence[Path],
    folder: Path,
    endpoint: Endpoint,
    *,
    values: str = "f32",
    num_requests: int = 4,
    resume: bool = False,
) -> RunReport:
    wanted = replace(WANTED, values=values)
    request = request_of(files, folder, wanted, resume=resume)
    job = EmbeddingJob(folder, SETTINGS, wanted, endpoint.ask, num_requests)
    executor = EmbeddingExecutor(job)
    report = run_shards(request, executor, lambda _: None)
    merge(folder, report.names, wanted.schema, folder / "all.parquet")
    return report


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES))
    return path


def test_rows_are_the_lines_in_order(file: Path, tmp_path: Path) -> None:
    report = embed([file], tmp_path / "out", Endpoint())
    assert report.is_whole and report.total_shards > 4
    assert (report.counts.rows, report.counts.tokens) == (600, 1800)
    table = pq.read_table(tmp_path / "out" / "all.parquet")
    assert [str(table.schema.field("vector").type.value_type), table.num_rows] == ["float", 600]
    assert table["id"].to_pylist() == list(range(600))
    assert set(table["source"].to_pylist()) == {str(file)}
    assert [int(vector[0]) for vector in table["vector"].to_pylist()] == list(map(len, LINES))


def test_what_is_resumed_is_the_same_bytes(file: Path, tmp_path: Path) -> None:
    """Whoever is asked, and however many requests are under way."""
    embed([file], tmp_path / "whole", Endpoint())
    whole = (tmp_path / "whole" / "all.parquet").read_bytes()
    cut = Endpoint(ends_after=300)
    with pytest.raises(UnavailableError):
        embed([file], tmp_path / "cut", cut)
    assert not (tmp_path / "cut" / "all.parquet").exists()
    rest = Endpoint()
    embed([file], tmp_path / "cut", rest, num_requests=1, resume=True)
    assert 0 < len(rest.texts) < 600
    assert (tmp_path / "cut" / "all.parquet").read_bytes() == whole


def test_another_models_vectors_are_not_mixed_in(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match="fp_2"):
        embed([file], tmp_path / "out", Endpoint("fp_2"))


def test_texts_that_have_no_vector_are_named(tmp_path: Path) -> None:
    lines = tmp_path / "some.jsonl"
    lines.write_text(
        '{"text": "one"}\n{"text": "wrong"}\nno json\n{"text": " "}\n{"text": "two"}\n'
    )
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"three\n\n\xff\nfour\n")
    report = embed([lines, plain], tmp_path / "out", Endpoint())
    found = [(Path(it.source).name, it.record) for it in report.problems]
    assert found == [("some.jsonl", 1), ("some.jsonl", 2), ("some.jsonl", 3), ("plain.txt", 2)]
    table = pq.read_table(tmp_path / "out" / "all.parquet")
    assert table["id"].to_pylist() == [0, 4, 0, 3]


def test_a_text_that_an_endpoint_refuses_without_its_name_is_found(
    file: Path, tmp_path: Path
) -> None:
    bad = {17, 18, 300, 599}
    endpoint = Endpoint()
    ask = endpoint.ask

    def refusing(texts: Sequence[str]) -> EmbeddedTexts:
        if any(text in texts for text in (LINES[number] for number in bad)):
            raise FrameTooLargeError("the body is too large")
        return ask(texts)

    endpoint.ask = refusing  # type: ignore[method-assign]
    report = embed([file], tmp_path / "out", endpoint)
    assert [it.record for it in report.problems] == sorted(bad)
    assert {it.message for it in report.problems} == {"the body is too large"}
    table = pq.read_table(tmp_path / "out" / "all.parquet")
    kept = [number for number in range(600) if number not in bad]
    assert table["id"].to_pylist() == kept
    assert [int(vector[0]) for vector in table["vector"].to_pylist()] == [
        len(LINES[number]) for number in kept
    ]


def test_a_file_whose_name_is_no_utf_8_is_named_and_costs_no_others(
    file: Path, tmp_path: Path
) -> None:
    nameless = Path(os.fsdecode(bytes(tmp_path) + b"/b\xff.txt"))
    nameless.write_text("text")
    report = embed([nameless, file], tmp_path / "out", Endpoint())
    assert report.counts.rows == 600
    (problem,) = report.problems
    assert problem.source == f"{tmp_path}/b\\xff.txt" and "rename" in problem.message
    (told,) = json.loads((tmp_path / "out" / MANIFEST).read_text("utf-8"))["unreadable"]
    assert told == str(problem)


@pytest.mark.parametrize(("values", "kind"), [("f16", "halffloat"), ("i8", "int8")])
def test_smaller_values(file: Path, tmp_path: Path, values: str, kind: str) -> None:
    embed([file], tmp_path / "out", Endpoint(), values=values)
    table = pq.read_table(tmp_path / "out" / "all.parquet")
    assert str(table.schema.field("vector").type.value_type) == kind
    vector = np.array(table["vector"][0].as_py(), np.float32)
    if values == "i8":
        vector *= table["scale"][0].as_py()
    np.testing.assert_allclose(vector, [len(LINES[0]), ord("y") / 128, -1.0], atol=0.1)


def test_what_is_under_way_is_bounded(tmp_path: Path) -> None:
    """Texts are read as far as requests may be sent, and no further."""
    path = tmp_path / "many.txt"
    path.write_text("line\n" * 20_000)
    held, most, lock = threading.Semaphore(0), [0, 0], threading.Lock()

    def ask(texts: Sequence[str]) -> EmbeddedTexts:
        with lock:
            most[0] += len(texts)
            most[1] = max(most)
        held.acquire(timeout=0.01)
        with lock:
            most[0] -= len(texts)
        return EmbeddedTexts(np.zeros((len(texts), 3), np.float32), 1, "fp_1")

    endpoint = Endpoint()
    endpoint.ask = ask  # type: ignore[method-assign]
    assert embed([path], tmp_path / "out", endpoint, num_requests=2).counts.rows == 20_000
    assert most[1] <= 2 * 128


def test_a_worker_of_a_cluster_writes_what_an_executor_does(file: Path, tmp_path: Path) -> None:
    report = embed([file], tmp_path / "one", Endpoint())
    assert len(report.names) > 1

    class Actors:
        """Shards in any order, by workers that have nothing in common."""

        def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
            for shard in reversed(shards):
                job = EmbeddingJob(tmp_path / "two", SETTINGS, WANTED, Endpoint().ask, 2)
                yield EmbeddingWorker(job).run(shard)

        def close(self) -> None:
            pass

    other = run_shards(request_of([file], tmp_path / "two", WANTED), Actors(), lambda _: None)
    assert other.names == report.names and other.counts == report.counts
    for name in report.names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_asks_an_endpoint_can_be_sent_to_a_worker() -> None:
    request = FilesRequest(["a"], Path("out.parquet"), "m", 8, "f32", "text", True, False, 4)
    ask = EndpointAsk(request, embeddings_endpoint.Endpoint("http://127.0.0.1:9/v1", "key"))
    assert vars(pickle.loads(pickle.dumps(ask))) == vars(ask)
