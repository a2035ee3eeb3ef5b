"""Copies on disk: whole whatever happens to the process, nobody else's to read, bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from outrider.speculation.learnt import KeptGroups, Learnt, LearntConfig, binding_of, to_bytes
from outrider.speculation.learnt_files import Copies, LearntFiles, LearntKeeper
from outrider.speculation.ngrams import pack

BINDING = binding_of(b"vocabulary", b"model")
SIZE = 1000
CONFIG = LearntConfig()


def learnt(token: int, count: int = 100) -> Learnt:
    return Learnt(({key: pack(token, 3) for key in range(count)}, {}, {}), {"rate": (0.25,)})


def opened(root: Path, config: LearntConfig = CONFIG, binding: bytes = BINDING) -> LearntKeeper:
    return LearntKeeper.open(root, binding, SIZE, config)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    keeper.save([(b"a", learnt(1)), (b"b", learnt(2))])
    keeper.save([(b"a", learnt(3))])
    again = opened(tmp_path).kept
    assert again.restore(b"a") == learnt(3) and again.restore(b"b") == learnt(2)
    assert again.restore(b"c").is_empty
    assert opened(tmp_path, binding=binding_of(b"other")).kept.restore(b"a").is_empty
    for path in files(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert b"a" != path.stem.encode() and len(path.stem) == 32


def test_nothing_is_read_or_written_where_that_is_switched_off(tmp_path: Path) -> None:
    opened(tmp_path).save([(b"a", learnt(1))])
    off = opened(tmp_path, LearntConfig(keep=False))
    assert off.kept.restore(b"a").is_empty
    off.kept.admit(b"a")
    assert len(off.kept) == 0


def test_damaged_files_are_ignored_with_a_line_in_the_log(tmp_path: Path) -> None:
    opened(tmp_path).save([(b"a", learnt(1)), (b"b", learnt(2)), (b"c", learnt(3))])
    cut, changed, whole = files(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-1])
    damaged = bytearray(changed.read_bytes())
    damaged[60] ^= 1
    changed.write_bytes(damaged)
    structlog.reset_defaults()
    with capture_logs() as logs:
        assert len(opened(tmp_path).kept) == 1
    ignored = {line["file"] for line in logs if line["event"] == "learnt_file_ignored"}
    assert ignored == {str(cut), str(changed)} and whole.exists()


def test_all_models_together_are_bounded_and_the_oldest_files_go(tmp_path: Path) -> None:
    size = len(to_bytes(learnt(1, 800), BINDING))
    config = LearntConfig(max_bytes=4 * size)
    bindings = [binding_of(bytes([model])) for model in range(3)]
    for number in range(12):
        keeper = opened(tmp_path, config, bindings[number % 3])
        keeper.save([(bytes([number]), learnt(1, 800))])
        for path in files(tmp_path):
            at = path.stat().st_mtime - 10
            os.utime(path, (at, at))  # the next one is later by any clock
    assert len(files(tmp_path)) == 4
    for number in range(12):
        kept = opened(tmp_path, config, bindings[number % 3]).kept
        assert kept.restore(bytes([number])).is_empty == (number < 8)


def test_small_files_count_a_block_each(tmp_path: Path) -> None:
    keeper = opened(tmp_path, LearntConfig(max_bytes=8 * 4096))
    keeper.save([(bytes([number]), learnt(1, 1)) for number in range(50)])
    assert len(files(tmp_path)) == 8


def test_a_folder_that_cannot_be_written_costs_a_line_in_the_log(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    keeper = opened(blocked)
    structlog.reset_defaults()
    with capture_logs() as logs:
        keeper.save([(b"a", learnt(1))])
    assert [line["event"] for line in logs] == ["learnt_not_saved"]
    assert keeper.kept.restore(b"a") == learnt(1), "kept in memory all the same"


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    keeper.save([(b"a", learnt(1))])
    (folder,) = tmp_path.iterdir()
    old, young = folder / "x.partial", folder / "y.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    opened(tmp_path).save([(b"a", learnt(2))])
    assert not old.exists() and young.exists()


def test_folders_of_models_that_are_gone_are_removed_later(tmp_path: Path) -> None:
    gone, empty = tmp_path / "gone", tmp_path / "empty"
    for folder in (gone, empty):
        folder.mkdir()
    os.utime(gone, (0, 0))
    opened(tmp_path).save([(b"a", learnt(1))])
    assert not gone.exists() and empty.exists()


WRITER = """
import sys
from pathlib import Path
from tests.speculation.test_learnt_files import learnt, opened
keeper = opened(Path(sys.argv[1]))
for number in range(10**9):
    keeper.save([(b"a", learnt(number % 900, 8000)), (b"b", learnt(number % 900, 8000))])
    print(number, flush=True)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_killed_while_it_writes_leaves_whole_files(tmp_path: Path, attempt: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(3 + attempt):
            assert writer.stdout.readline()
        time.sleep(0)
        writer.send_signal(signal.SIGKILL)
    structlog.reset_defaults()
    with capture_logs() as logs:
        kept = opened(tmp_path).kept
    assert not logs, "no damaged file"
    for group in (b"a", b"b"):
        (table, *_), rate = kept.restore(group).tables, kept.restore(group).numbers["rate"]
        assert len(table) == 8000 and rate == (0.25,)
        assert len(set(table.values())) == 1, "of one saving"


async def test_saving_goes_on_until_there_is_nothing_new(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    rounds: list[Copies] = [[(b"a", learnt(1))], [(b"b", learnt(2))], [], [(b"c", learnt(3))], []]
    waits: list[float] = []
    done = asyncio.Event()

    async def take() -> Copies:
        return rounds.pop(0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            done.set()
            await asyncio.Event().wait()

    saving = asyncio.create_task(keeper.run(take, 7.0, sleep))
    await done.wait()
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    assert waits == [7.0] * 3 and not rounds
    again = opened(tmp_path).kept
    assert [again.restore(g) for g in (b"a", b"b", b"c")] == [learnt(1), learnt(2), learnt(3)]


async def test_a_cancel_waits_for_copies_that_were_taken(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    asked, go = asyncio.Event(), asyncio.Event()
    rounds: list[Copies] = [[(b"a", learnt(1))], [(b"b", learnt(2))], []]

    async def take() -> Copies:
        asked.set()
        await go.wait()
        return rounds.pop(0)

    async def sleep(seconds: float) -> None:
        """Time is up."""

    saving = asyncio.create_task(keeper.run(take, 7.0, sleep))
    await asked.wait()
    saving.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert not rounds
    again = opened(tmp_path).kept
    assert [again.restore(group) for group in (b"a", b"b")] == [learnt(1), learnt(2)]


def test_files_larger_than_any_that_is_written_are_ignored(tmp_path: Path) -> None:
    kept = KeptGroups(BINDING, SIZE, 1 << 30)
    store = LearntFiles(tmp_path, BINDING, 1 << 30)
    store.save([("0" * 32, to_bytes(learnt(1), BINDING) + bytes(1 << 20))])
    store.load(kept)
    assert len(kept) == 0
