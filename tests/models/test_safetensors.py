"""Safetensors files that lie, and folders whose shards do not belong together: each is named, and
nothing of them stays in the store."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ArtifactCorruptError, OutriderError, SourceError
from outrider.models.checkpoint_gguf import Checkpoint
from outrider.models.folder import checkpoint_extents, unpacked
from outrider.models.safetensors_file import MAX_HEADER_BYTES, Extent, SafetensorsFile, read_header
from outrider.models.store import ModelStore
from tests.models.checkpoints import (
    LLAMA,
    QWEN2,
    Small,
    as_bf16,
    framed,
    packed,
    random_tensors,
    write_checkpoint,
)
from tests.models.test_folder import nothing_stored
from tests.models.test_tokenizer_json import small as small_tokenizer

SMALL = Small(LLAMA, 288, width=64, heads=2, kv_heads=1, head_size=32, inner=64)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header_of(path: Path, data: bytes) -> dict[str, Any]:
    path.write_bytes(data)
    return dict(read_header(Extent.of_file(path)))


def test_tensors_are_where_the_header_says(tmp_path: Path) -> None:
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros(0, np.float32)}
    data = packed(tensors)
    path = tmp_path / "inside"
    path.write_bytes(b"before" + data + b"behind")
    opened = SafetensorsFile(Extent("m", path, 6, len(data)))
    assert {name: each.shape for name, each in opened.tensors.items()} == {"b": (2, 3), "a": (0,)}
    np.testing.assert_array_equal(opened.bytes_of("b").view(np.float32), np.arange(6))
    assert len(opened.bytes_of("a")) == 0


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "header is to have 0 bytes"),
        (b"\xff" * 8, "header is to have"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "header is to have"),
        ((3).to_bytes(8, "little") + b"{}", "header is to have 3 bytes, and there are 2"),
        (framed(b"[1]", b""), "no JSON object"),
        (framed(b"{", b""), "Expecting"),
        (framed(b"[" * 50_000, b""), "recursion|Recursion"),
        (framed(b"{\xff}", b""), "utf-8"),
        (framed(b'{"a": {}, "a": {}}', b""), "'a' occurs twice"),
        (framed({"a": 3}, b""), "no attribute|keys"),
        (framed({"a": entry() | {"x": 1}}, bytes(8)), "other fields"),
        (framed({"a": entry("F12")}, bytes(8)), "'F12', which is not known"),
        (framed({"a": entry(shape=[-2])}, bytes(8)), "no shape"),
        (framed({"a": entry(shape=[True])}, bytes(8)), "no shape"),
        (framed({"a": entry(shape=[1] * 9)}, bytes(8)), "no shape"),
        (framed({"a": entry(offsets=[0])}, bytes(8)), "no two offsets"),
        (framed({"a": entry(offsets=[0, 4])}, bytes(4)), "has 4 bytes, its shape takes 8"),
        (framed({"a": entry(offsets=[8, 0])}, bytes(8)), "has -8 bytes"),
        (framed({"a": entry(shape=[1 << 61, 1 << 61])}, bytes(8)), "its shape takes"),
        (framed({"a": entry()}, bytes(4)), "tensors end at byte"),
        (framed({"a": entry()}, bytes(12)), "tensors end at byte"),
        (framed({"a": entry(offsets=[4, 12])}, bytes(12)), "leaves a gap"),
        (
            framed({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
            "'b' overlaps the one before",
        ),
        (packed({"a": np.ones(9, np.float32)})[:-1], "tensors end at byte"),
    ],
)
def test_files_that_lie_are_refused(data: bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorruptError, match=complaint):
        header_of(tmp_path / "m.safetensors", data)


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(4 << 30)  # a hole: takes no room
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactCorruptError, match="header is to have"):
        read_header(Extent.of_file(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_header_of_more_values_than_tensors_have_is_not_parsed(tmp_path: Path) -> None:
    data = framed(b'{"a":[' + b"[]," * 1_100_000 + b"[]]}", b"")
    assert len(data) < MAX_HEADER_BYTES
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactCorruptError, match="more values than 65536 tensors have"):
        read_header(Extent.of_file(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_all_experts_of_a_large_model_in_one_file_are_read(tmp_path: Path) -> None:
    """128 experts in each of 48 layers, with three matrices each, of 6 MB."""
    at, header = 0, {}
    for layer in range(48):
        for expert in range(128):
            for part in ("gate", "up", "down"):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                header[name] = entry("BF16", (2048, 768), (at, at + 2048 * 768 * 2))
                at += 2048 * 768 * 2
    path = tmp_path / "m.safetensors"
    data = framed(header, b"")
    assert 1_000_000 < len(data) < MAX_HEADER_BYTES
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(len(data) + at)  # a hole of 58 GB: takes no room
    assert len(read_header(Extent.of_file(path))) == 48 * 128 * 3


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def folder_of(tmp_path: Path, shards: int = 1, dtype: str = "F32") -> Path:
    tensors = random_tensors(SMALL)
    return write_checkpoint(
        tmp_path / "m", SMALL, tensors, small_tokenizer("gpt-2"), shards=shards, dtype=dtype
    )


def test_a_gguf_file_has_the_tensors_bits(tmp_path: Path, store: ModelStore) -> None:
    import gguf

    folder = folder_of(tmp_path, shards=3, dtype="BF16")
    artifact = store.ensure(f"dir:{folder}")
    files = unpacked(artifact, store)
    assert not list(files.glob("*.safetensors")), "the archive holds them already"
    assert [each.name for each in checkpoint_extents(artifact.path)] == [
        f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    Checkpoint(files, artifact.path).write_gguf(tmp_path / "m.gguf")
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    values = random_tensors(SMALL)
    down = found["blk.1.ffn_down.weight"]
    expected = as_bf16(values["model.layers.1.mlp.down_proj.weight"])
    assert down.tensor_type == gguf.GGMLQuantizationType.BF16
    np.testing.assert_array_equal(down.data.view(np.uint16), expected)
    rows = as_bf16(values["model.layers.1.self_attn.q_proj.weight"])
    queries = found["blk.1.attn_q.weight"].data.view(np.uint16)
    for head, pair in ((0, 0), (0, 5), (1, 15)):
        np.testing.assert_array_equal(queries[32 * head + 2 * pair], rows[32 * head + pair])
        np.testing.assert_array_equal(
            queries[32 * head + 2 * pair + 1], rows[32 * head + pair + 16]
        )


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return found


def _write_index(folder: Path, value: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), SourceError, "00002-of-0000"),
        (
            lambda f: (f / "model-00002-of-00002.safetensors").write_bytes(b"\0" * 99),
            ArtifactCorruptError,
            "model-00002-of-00002.safetensors is not a whole",
        ),
        (lambda f: _write_index(f, {}), ArtifactCorruptError, "no weight_map"),
        (lambda f: _write_index(f, []), ArtifactCorruptError, "no weight_map"),
        (lambda f: _write_index(f, {"weight_map": {}}), ArtifactCorruptError, "names 0 files"),
        (
            lambda f: _write_index(f, {"weight_map": {"a": "../../etc/passwd"}}),
            ArtifactCorruptError,
            "no plain name",
        ),
        (
            lambda f: _write_index(f, {"weight_map": {"a": "sub/x.safetensors"}}),
            ArtifactCorruptError,
            "no plain name",
        ),
        (
            lambda f: _write_index(
                f, {"weight_map": {str(n): f"m{n}.safetensors" for n in range(1025)}}
            ),
            ArtifactCorruptError,
            "names 1025 files",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), SourceError, r"lacks tokenizer\.json"),
    ],
)
def test_shards_that_lack_or_lie_leave_nothing_in_the_store(
    change: Any, error: type[OutriderError], complaint: str, tmp_path: Path, store: ModelStore
) -> None:
    folder = folder_of(tmp_path, shards=2)
    change(folder)
    with pytest.raises(error, match=complaint):
        store.ensure(f"dir:{folder}")
    assert nothing_stored(store)


@pytest.mark.parametrize("moved", [True, False])
def test_an_index_that_says_something_else_than_the_shards_is_refused(
    moved: bool, tmp_path: Path, store: ModelStore
) -> None:
    folder = folder_of(tmp_path, shards=2)
    index = index_of(folder)
    if moved:
        name = next(n for n, file in index["weight_map"].items() if file.startswith("model-00001"))
        index["weight_map"][name] = "model-00002-of-00002.safetensors"
    else:
        index["weight_map"]["strange"] = "model-00002-of-00002.safetensors"
    _write_index(folder, index)
    artifact = store.ensure(f"dir:{folder}")
    with pytest.raises(ArtifactCorruptError, match=r"index\.json says that"):
        Checkpoint(unpacked(artifact, store), artifact.path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, store: ModelStore) -> None:
    folder = folder_of(tmp_path, shards=2)
    for number in (1, 2):
        file = folder / f"model-0000{number}-of-00002.safetensors"
        file.write_bytes(packed({"model.norm.weight": np.ones(64, np.float32)}))
    artifact = store.ensure(f"dir:{folder}")
    with pytest.raises(ArtifactCorruptError, match=r"'model\.norm\.weight' is in .* and in"):
        Checkpoint(unpacked(artifact, store), artifact.path)


def test_tables_of_old_checkpoints_are_left_out(tmp_path: Path, store: ModelStore) -> None:
    small = Small(QWEN2, 288, width=64, heads=2, kv_heads=1, head_size=32, inner=64)
    tensors = random_tensors(small)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    folder = write_checkpoint(tmp_path / "m", small, tensors, small_tokenizer("gpt-2"))
    artifact = store.ensure(f"dir:{folder}")
    names = {each.name for each in Checkpoint(unpacked(artifact, store), artifact.path).tensors}
    assert names == tensors.keys() - {"model.layers.0.self_attn.rotary_emb.inv_freq"}
