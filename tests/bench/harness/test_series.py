"""Many benches in a row: what is skipped, what fails, what is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.harness.benches import CORE, MAX_CORE_MINUTES, Bench, bench_of
from bench.harness.series import Series, Size, install, is_fresh, minutes
from bench.harness.sources import digests
from bench.peers.installing import Peer

CORE_SIZE = Size(core=True)


def bench(root: Path, name: str, script: str, peers: tuple[str, ...] = ()) -> Bench:
    """A bench that runs this script."""
    (root / f"{name}.py").write_text(script)
    return Bench(name, name, minutes=30.0, core_minutes=3.0, peers=peers)


def record(root: Path, made: Bench, plan: str, duration_s: float = 90.0) -> None:
    """As a run of it would leave it now."""
    sources = digests([f"{made.record}.py"], root)
    row = {"name": made.record, "plan": plan, "duration_s": duration_s, "sources": sources}
    (root / f"{made.record}.json").write_text(json.dumps(row))


def series(root: Path, *benches: Bench, size: Size = CORE_SIZE, fresh: bool = False) -> Series:
    return Series(benches, size, fresh=fresh, results=root, root=root)


def nothing(names: Sequence[str]) -> list[str]:
    return []


def test_what_fails_is_listed_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = bench(tmp_path, "bad", "raise SystemExit(3)")
    good = bench(tmp_path, "good", "import sys; print(sys.argv[1:])")
    found = series(tmp_path, bad, good).run(nothing)
    assert found.failed == ["bad"]
    out, told = capfd.readouterr()
    assert out == "['--core']\n"
    assert "2 to run, about 6 min in all" in told
    assert "[1 of 2] bad: about 3.0 min; 6 min left in all" in told
    assert "[2 of 2] good: about 3.0 min; 3 min left in all" in told


def test_what_is_recorded_from_these_sources_is_skipped_unless_told(tmp_path: Path) -> None:
    done, other = (bench(tmp_path, name, "") for name in ("done", "other"))
    record(tmp_path, done, "core")
    assert series(tmp_path, done, other).left == [other]
    assert series(tmp_path, done, other).result.skipped == ["done"]
    assert series(tmp_path, done, other, fresh=True).left == [done, other]
    (tmp_path / "done.py").write_text("changed")
    assert series(tmp_path, done, other).left == [done, other]


def test_a_core_record_does_not_stand_for_a_full_one(tmp_path: Path) -> None:
    one = bench(tmp_path, "one", "")
    record(tmp_path, one, "core")
    assert is_fresh(one, CORE_SIZE, tmp_path, tmp_path)
    assert not is_fresh(one, Size(), tmp_path, tmp_path)
    record(tmp_path, one, "full")
    assert is_fresh(one, CORE_SIZE, tmp_path, tmp_path)
    assert is_fresh(one, Size(), tmp_path, tmp_path)


def test_minutes_are_those_of_the_last_run_of_this_size(tmp_path: Path) -> None:
    one = bench(tmp_path, "one", "")
    assert (minutes(one, CORE_SIZE, tmp_path), minutes(one, Size(), tmp_path)) == (3.0, 30.0)
    record(tmp_path, one, "core")
    assert (minutes(one, CORE_SIZE, tmp_path), minutes(one, Size(), tmp_path)) == (1.5, 30.0)


def test_peers_are_installed_before_the_part_that_needs_them(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def fails(names: Sequence[str]) -> list[str]:
        asked.append(names)
        return list(names)

    one = bench(tmp_path, "one", "", peers=("llamacpp",))
    assert series(tmp_path, one).run(fails).not_installed == ["llamacpp"]
    assert asked == [("llamacpp",)]
    series(tmp_path, one, size=Size(quick=True)).run(fails)
    assert len(asked) == 1


def test_installing_takes_what_is_missing_and_names_what_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    def breaks() -> None:
        raise RuntimeError("no compiler")

    peers = {
        "there": Peer("there", "1", 1.0, lambda: True, breaks),
        "new": Peer("new", "1", 2.0, lambda: False, lambda: done.append("new")),
        "broken": Peer("broken", "1", 3.0, lambda: False, breaks),
    }
    assert install(peers, peers) == ["broken"]
    assert done == ["new"]
    told = capsys.readouterr().err
    assert "installing new: about 2 min" in told
    assert "broken could not be installed: no compiler" in told
    assert "there" not in told


def test_the_core_parts_take_at_most_an_hour() -> None:
    assert sum(part.core_minutes for part in CORE) <= MAX_CORE_MINUTES
    assert all(part.core_minutes > 0 for part in CORE)


def test_unlisted_benches_are_called_after_their_record() -> None:
    assert bench_of("new").command(core=True, quick=True) == ("bench.new", "--core", "--quick")
    assert bench_of("wan_pair").command() == ("bench.wan", "--pair")
    assert bench_of("fidelity").command(core=True) == ("bench.fidelity",)
