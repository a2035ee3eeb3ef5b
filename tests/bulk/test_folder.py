"""What is on the disk when a run was killed, and when one is finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bulk import folder
from outrider.bulk.folder import JOURNAL, MANIFEST, OutputFolder
from outrider.bulk.plan import journal
from outrider.bulk.plan.results import ShardResult, TextCounts, TextProblem
from outrider.bulk.plan.shards import BulkSettings

PROBLEM = TextProblem("größe.txt", "ist leer, 空", None)


def shard(path: Path, number: int) -> ShardResult:
    """One that is there."""
    name = f"shard-{number}"
    (path / name).write_bytes(b"x" * number)
    return ShardResult(number, name, number, TextCounts(), (PROBLEM,), number)


def test_a_journal_cut_off_within_a_character_is_gone_on_with(tmp_path: Path) -> None:
    results = [shard(tmp_path, number) for number in (1, 2)]
    lines = [journal.head_line("run"), *map(journal.shard_line, results)]
    whole = "".join(lines).encode()
    num_kept = len("".join(lines[:2]).encode())
    for cut in range(num_kept, len(whole)):
        (tmp_path / JOURNAL).write_bytes(whole[:cut])
        with OutputFolder.opened(tmp_path, "run", resume=True) as opened:
            assert list(opened.finished) == [1]
            opened.add(results[1])
        assert (tmp_path / JOURNAL).read_bytes() == whole


def test_a_manifest_is_written_when_what_earlier_runs_wrote_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(folder, "sync_file", lambda path: synced.add(path.name))
    with OutputFolder.opened(tmp_path, "run", resume=False) as killed:
        killed._write(journal.shard_line(shard(tmp_path, 1)))
    assert not synced
    with OutputFolder.opened(tmp_path, "run", resume=True) as opened:
        opened.add(shard(tmp_path, 2))
        opened.complete(BulkSettings(), {"writer": "w"})
        assert synced == {"shard-1", "shard-2"}
    assert (tmp_path / MANIFEST).exists()
