"""A demo's mesh that fails leaves its logs, and says where."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from outrider.cli.demo.mesh import kept_if_failed, own_mesh
from outrider.errors import UnavailableError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_after_success_and_after_ctrl_c(temporary: Path) -> None:
    with kept_if_failed():
        pass
    with pytest.raises(KeyboardInterrupt), kept_if_failed():
        raise KeyboardInterrupt
    assert not [*temporary.iterdir()]


def test_a_folder_stays_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="what"), kept_if_failed() as folder:
        (folder / "logs").mkdir()
        raise ValueError("what")
    assert (folder / "logs").is_dir()
    assert f"logs stay in {folder / 'logs'} (`outrider logs --state-dir {folder}`)" in (
        capsys.readouterr().err
    )


@pytest.mark.e2e
def test_a_mesh_that_does_not_start_says_which_process_why_and_where_its_log_is(
    temporary: Path,
) -> None:
    # An address for documentation, which no machine has (RFC 5737).
    shape = ("--engine", "fake", "--regions", "here", "--set=inference.host=192.0.2.1")
    with pytest.raises(UnavailableError) as failed, own_mesh("", shape):
        pytest.fail("it is up")
    (folder,) = temporary.glob("outrider-demo-*")
    (log,) = (folder / "logs").glob("here-*.log")
    first, *_, told, _ = failed.value.message.splitlines()
    assert first.endswith(f"{log.stem} ended with status 1 before it was ready; the end of {log}:")
    assert "192.0.2.1" in told
    assert log.read_text(encoding="utf-8")
