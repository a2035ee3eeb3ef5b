"""Model folders: one archive in the store, whole or not at all; every missing or damaged piece is
named."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import (
    ArtifactCorruptError,
    OutriderError,
    SourceError,
    UnsupportedModelError,
)
from outrider.models.catalog import ModelSpec
from outrider.models.folder import is_archive, read_definition, read_facts, unpack, unpacked
from outrider.models.store import ModelStore
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.vocabulary import load_vocabulary
from tests.models.test_tokenizer_json import small

TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"


def write_folder(folder: Path, **changes: Any) -> Path:
    """A folder without a real graph; a change of None leaves a file out."""
    size = len(json.loads(small("gpt-2"))["model"]["vocab"])
    contents: dict[str, Any] = {
        "openvino_model.xml": "<net/>",
        "openvino_model.bin": b"weights" * 1000,
        "config.json": {"vocab_size": size, "max_position_embeddings": 128, "eos_token_id": 256},
        "tokenizer.json": small("gpt-2"),
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": None},
        "generation_config.json": {"eos_token_id": [256, 3]},
        "chat_template.jinja": TEMPLATE,
        "README.md": "not part of the model",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (contents | changes).items():
        if content is None:
            continue
        if isinstance(content, dict):
            content = json.dumps(content)
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def nothing_stored(store: ModelStore) -> bool:
    kept = [p for p in store.root.rglob("*") if p.is_file() and p.suffix != ".lock"]
    return kept == []


def test_a_folder_is_one_artifact_of_the_bytes_that_are_used(
    tmp_path: Path, store: ModelStore
) -> None:
    one = write_folder(tmp_path / "one")
    artifact = store.ensure(f"dir:{one}")
    assert is_archive(artifact.path)
    # Another folder of the same files, written later, with other files beside them.
    other = write_folder(tmp_path / "other", **{"notes.txt": "x", "README.md": None})
    assert store.ensure(f"dir:{other}", sha256=artifact.sha256).sha256 == artifact.sha256
    changed = write_folder(tmp_path / "changed", **{"openvino_model.bin": b"other"})
    fresh = ModelStore(tmp_path / "fresh")
    with pytest.raises(ArtifactCorruptError, match="the pin says"):
        fresh.ensure(f"dir:{changed}", sha256=artifact.sha256)
    assert nothing_stored(fresh)
    folder = unpacked(artifact, store)
    assert (folder / "openvino_model.bin").read_bytes() == b"weights" * 1000
    assert not (folder / "README.md").exists()
    with tarfile.open(artifact.path) as archive:
        assert archive.getnames() == sorted(archive.getnames())


def test_a_file_that_is_damaged_in_the_store_is_noticed(tmp_path: Path, store: ModelStore) -> None:
    artifact = store.ensure(f"dir:{write_folder(tmp_path / 'one')}")
    path = unpacked(artifact, store) / "openvino_model.bin"
    path.chmod(0o644)
    path.write_bytes(b"Weights" * 1000)
    assert (unpacked(artifact, store) / "openvino_model.bin").read_bytes() == b"weights" * 1000


@pytest.mark.parametrize(
    "name", ["openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json"]
)
def test_a_missing_piece_is_named_and_nothing_is_stored(
    name: str, tmp_path: Path, store: ModelStore
) -> None:
    folder = write_folder(tmp_path / "one", **{name: None})
    with pytest.raises(SourceError, match=f"lacks {name}; what can be served is a GGUF file"):
        store.ensure(f"dir:{folder}")
    assert nothing_stored(store)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (["pytorch_model.bin", "config.json"], "they can run any code; save the model as saf"),
        (["consolidated.00.pth"], "pickles"),
        (["adapter_model.safetensors"], "neither model.safetensors nor model.safetensors.index"),
        (["m.Q8_0.gguf", "config.json"], "GGUF files; name one of them"),
    ],
)
def test_other_folders_are_refused_with_what_can_be_served(
    files: list[str], complaint: str, tmp_path: Path, store: ModelStore
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match=complaint):
        store.ensure(f"dir:{folder}")
    with pytest.raises(SourceError, match=f"write dir:{folder}"):
        store.ensure(f"file:{folder}")
    with pytest.raises(SourceError, match="cannot be read"):
        store.ensure(f"dir:{tmp_path / 'nowhere'}")
    assert nothing_stored(store)


def test_a_piece_that_is_no_file_is_refused(tmp_path: Path, store: ModelStore) -> None:
    folder = write_folder(tmp_path / "one", **{"openvino_model.bin": None})
    (folder / "openvino_model.bin").mkdir()
    with pytest.raises(SourceError, match=r"openvino_model\.bin"):
        store.ensure(f"dir:{folder}")
    assert nothing_stored(store)


def test_the_vocabulary_and_the_facts(tmp_path: Path, store: ModelStore) -> None:
    folder = write_folder(tmp_path / "one")
    artifact = store.ensure(f"dir:{folder}")
    vocabulary = load_vocabulary(ModelSpec("m", f"dir:{folder}", artifact.sha256), store)
    assert vocabulary.chat_template == TEMPLATE
    assert vocabulary.facts.bos_token == "<s>"
    assert {3, 256} <= vocabulary.stop_ids
    assert read_facts(folder).max_context_tokens == 128
    assert vocabulary.size == read_facts(folder).vocabulary_size


def test_older_folders_keep_the_template_elsewhere(tmp_path: Path) -> None:
    templates = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    changes = {"chat_template.jinja": None}
    for name, config, expected in (
        ("a", {"chat_template": "C"}, "C"),
        ("b", {"chat_template": templates}, "D"),
        ("c", {}, ""),
    ):
        folder = write_folder(tmp_path / name, **changes, **{"tokenizer_config.json": config})
        assert read_definition(folder).chat_template == expected
    folder = write_folder(
        tmp_path / "d", **changes, **{"chat_template.json": {"chat_template": "J"}}
    )
    assert read_definition(folder).chat_template == "J"


def test_whether_prompts_begin_with_a_token(tmp_path: Path) -> None:
    for said in (True, False):
        config = {"bos_token": "<s>", "add_bos_token": said}
        folder = write_folder(tmp_path / str(said), **{"tokenizer_config.json": config})
        assert read_definition(folder).adds_bos is said
    folder = write_folder(tmp_path / "c", **{"tokenizer_config.json": {"add_bos_token": "yes"}})
    with pytest.raises(ArtifactCorruptError, match="add_bos_token of the model's folder"):
        read_definition(folder)


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        ({"config.json": {}}, UnsupportedModelError, "lacks vocab_size"),
        ({"config.json": "[" * 100_000}, ArtifactCorruptError, "no JSON"),
        ({"config.json": "[]"}, ArtifactCorruptError, "no JSON object"),
        ({"config.json": b"\xff"}, ArtifactCorruptError, "utf-8"),
        (
            {"config.json": '{"vocab_size": 300, "vocab_size": 400}'},
            ArtifactCorruptError,
            "'vocab_size' occurs twice",
        ),
        (
            {"generation_config.json": '{"eos_token_id": 1, "eos_token_id": 2}'},
            ArtifactCorruptError,
            "'eos_token_id' occurs twice",
        ),
        ({"tokenizer.json": "{"}, ArtifactCorruptError, r"no whole tokenizer\.json"),
        ({"tokenizer_config.json": {"bos_token": 3}}, ArtifactCorruptError, "bos_token"),
        ({"generation_config.json": {"eos_token_id": "x"}}, ArtifactCorruptError, "eos_token_id"),
        ({"generation_config.json": {"eos_token_id": 9999}}, ArtifactCorruptError, "outside"),
        ({"tokenizer_config.json": {"chat_template": 3}, "chat_template.jinja": ""}, None, ""),
    ],
    ids=str,
)
def test_damaged_pieces_are_named(
    change: dict[str, Any], error: type[OutriderError] | None, complaint: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "one", **change)
    if error is None:
        assert read_definition(folder).chat_template == ""
        return
    with pytest.raises(error, match=complaint):
        read_definition(folder)


def _archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """Names, contents and kinds."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


PLAIN = tarfile.REGTYPE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 2048,
        _archive(),
        _archive(("../evil", b"x", PLAIN)),
        _archive(("/etc/passwd", b"x", PLAIN)),
        _archive(("config.json", b"{}", PLAIN), ("config.json", b"{}", PLAIN)),
        _archive(("config.json", b"", tarfile.SYMTYPE)),
        _archive(("config.json", b"", tarfile.DIRTYPE)),
        _archive(("config.json", b"{}" * 1000, PLAIN))[:1024],
    ],
)
def test_archives_of_something_else_are_refused(data: bytes, tmp_path: Path) -> None:
    archive, folder = tmp_path / "a.tar", tmp_path / "out"
    archive.write_bytes(data)
    folder.mkdir()
    with pytest.raises(ArtifactCorruptError):
        unpack(archive, folder)
    assert not (tmp_path / "evil").exists()


def _old_sparse(size: int) -> bytes:
    """A member of GNU's sparse kind with no bytes at all, which claims `size`."""
    header = bytearray(tarfile.TarInfo("config.json").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:482] = bytes(96)
    header[386:410] = b"%011o\0" % size + b"%011o\0" % 0  # one hole up to the end
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def _pax(content: bytes, **headers: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("config.json")
        info.size, info.pax_headers = len(content), headers
        archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


HUGE = 1 << 30


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (_old_sparse(HUGE), "no plain file"),
        (
            _pax(
                f"1\n{HUGE}\n0\n".encode().ljust(512, b"\0"),
                **{
                    "GNU.sparse.major": "1",
                    "GNU.sparse.minor": "0",
                    "GNU.sparse.name": "config.json",
                    "GNU.sparse.realsize": str(HUGE),
                },
            ),
            "no plain file",
        ),
        (
            _pax(b"", **{"GNU.sparse.map": f"{HUGE},0", "GNU.sparse.size": str(HUGE)}),
            "no plain file",
        ),
        (_pax(b"{}", size=str(HUGE)), "no plain file"),
        (_pax(b"{}", comment="x"), "no plain file"),
        (_archive(("config.json", b"{}", tarfile.CONTTYPE)), "no plain file"),
        (_header("config.json", HUGE) + bytes(1024), "more bytes than are in it"),
    ],
    ids=[
        "sparse",
        "pax-sparse-1.0",
        "pax-sparse-0.1",
        "pax-size",
        "pax",
        "contiguous",
        "too-large",
    ],
)
def test_an_archive_writes_no_more_than_it_holds(
    data: bytes, complaint: str, tmp_path: Path
) -> None:
    archive, folder = tmp_path / "a.tar", tmp_path / "out"
    archive.write_bytes(data)
    folder.mkdir()
    with pytest.raises(ArtifactCorruptError, match=complaint):
        unpack(archive, folder)
    assert list(folder.iterdir()) == []


def test_what_a_folder_suggests_to_sample_with_is_kept_with_its_vocabulary(
    tmp_path: Path, store: ModelStore
) -> None:
    settings = {"eos_token_id": [256, 3], "temperature": 0.7, "top_k": 20}
    folder = write_folder(tmp_path / "m", **{"generation_config.json": settings})
    spec = ModelSpec("m", f"dir:{folder}")
    for _ in range(2):  # read, and found again in the store
        assert load_vocabulary(spec, store).facts.sampling == SuggestedSampling(0.7, 20)
