"""What a run wrote is there when it is needed, and only then."""

from __future__ import annotations

import shutil

import pytest

from bench.harness.run_folder import run_folder


def test_a_run_that_went_well_leaves_nothing() -> None:
    with run_folder("test") as folder:
        (folder.path / "a.log").write_text("fine")
    assert not folder.path.exists()


def test_a_run_that_raised_keeps_its_logs_and_says_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match="ended") as raised, run_folder("test") as folder:
        (folder.path / "a.log").write_text("port taken")
        raise RuntimeError("a ended while it started")
    assert (folder.path / "a.log").read_text() == "port taken"
    assert str(folder.path) in "".join(raised.value.__notes__)
    assert str(folder.path) in capsys.readouterr().err
    shutil.rmtree(folder.path)


def test_a_run_that_found_something_wrong_keeps_its_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_folder("test") as folder:
        folder.failed = "3 replies differ"
    assert folder.path.exists()
    assert "3 replies differ" in capsys.readouterr().err
    folder.path.rmdir()


def test_a_run_that_was_stopped_leaves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), run_folder("test") as folder:
        raise KeyboardInterrupt
    assert not folder.path.exists()
