"""What `outrider doctor` says of the draft model."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli import doctor
from outrider.engines import draft_loading
from tests.engines.test_draft_file import write


def finding(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> doctor.Finding:
    monkeypatch.setattr(draft_loading, "shipped_draft", lambda target: path)
    return doctor._draft()


def test_without_a_draft_model_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = finding(monkeypatch, None)
    assert found.ok
    assert "none is shipped" in found.what


def test_a_draft_model_and_how_much_it_can_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(monkeypatch, write(tmp_path / "d.gguf"))
    assert found.ok
    assert "3 of its ids" in found.what


def test_a_damaged_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.gguf").write_bytes(b"GGUF")
    found = finding(monkeypatch, tmp_path / "d.gguf")
    assert not found.ok
    assert "install the package again" in found.fix
