"""From a target's file to a draft that an edge's drafter loads: any architecture, vocabulary and
form. Training itself needs torch; without it the student stays as it begins."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from bench.harness.model_folder import write_folder
from outrider.engines.base import SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.draft_loading import load_draft
from outrider.engines.openvino.convert import converted
from outrider.errors import ArtifactCorruptError, UnsupportedModelError
from outrider.models import catalog
from outrider.models.catalog import ModelSpec, load_catalog, lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from tests.fidelity.models import Shape, weights, write
from tests.models.checkpoints import Small, random_tensors, write_checkpoint
from tests.models.sentencepieces import add_vocabulary, trained
from tests.models.test_tokenizer_json import small as small_tokenizer
from tools.train_draft import __main__ as command
from tools.train_draft.draft_file import read_draft
from tools.train_draft.replies import load
from tools.train_draft.student_weights import STUDENT_FILE, StudentWeights
from tools.train_draft.target import (
    EMBEDDING,
    OUTPUT,
    Geometry,
    TargetFile,
    coverage,
    head_ids,
    open_target,
)

HAS_TORCH = importlib.util.find_spec("torch") is not None
ARCHITECTURES = ("llama", "qwen2", "qwen3")


def write_target(path: Path, architecture: str) -> Path:
    pieces = trained()
    shape = Shape(architecture, vocabulary=pieces.get_piece_size(), width=64, inner=96, layers=3)

    def add(writer: GGUFWriter) -> None:
        add_vocabulary(writer, pieces, prefix=True)

    tensors = weights(shape, biased=architecture == "qwen2")
    return write(path, shape, tensors, add_tokenizer=add)


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a store and a file of definitions of its own."""
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    yield tmp_path
    catalog.use(load_catalog(Path("/dev/null")), None)


def define(folder: Path, source: str) -> ModelSpec:
    file = folder / "outrider.toml"
    file.write_text(f'[models.tiny]\nsource = "{source}"\n')
    catalog.use(load_catalog(file), file)
    return lookup("tiny")


def as_folder(folder: Path) -> ModelSpec:
    """The target as OpenVINO's organisation publishes models."""
    spec = define(folder, f"file:{write_target(folder / 'm.gguf', 'llama')}")
    store = ModelStore(default_root())
    graph, vocabulary = converted(spec, store), load_vocabulary(spec, store)
    return define(folder, f"dir:{write_folder(folder / 'published', graph, vocabulary)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*ARCHITECTURES, "folder"])
def test_a_draft_is_made_of_a_targets_own_replies_and_loaded(defined: Path, kind: str) -> None:
    if kind == "folder":
        spec = as_folder(defined)
    else:
        spec = define(defined, f"file:{write_target(defined / 'm.gguf', kind)}")
    store = ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    replies, run, out = defined / "replies", defined / "run", defined / "a.draft.gguf"
    common = ["--model", "tiny"]
    for _ in range(2):  # the second one finds all chats answered
        command.main([*common, "generate", "--replies", str(replies), "--chats", "6"])
    recorded = list(load(replies))
    assert {reply.number for reply in recorded} <= set(range(6)) and recorded
    if HAS_TORCH:
        options = ["--steps", "4", "--head-rows", "64", "--layers", "0,2", "--device", "cpu"]
        command.main([*common, "train", "--replies", str(replies), "--run", str(run), *options])
        assert StudentWeights.load(run / STUDENT_FILE).history["state"]["step"] == 4
    else:
        run.mkdir()
        untrained(spec, store, run)
    arguments = [
        "--run",
        str(run),
        "--replies",
        str(replies),
        "--out",
        str(out),
        "--layers",
        "Q8_0",
    ]
    command.main([*common, "export", *arguments])
    made = read_draft(out)
    assert made.vocabulary_digest == vocabulary.digest.hex() and made.target == "tiny"
    assert made.geometry.block_count == 2 and len(made.head_ids) == 64
    assert coverage(recorded, made.head_ids) > 0.3
    assert (made.embedding is not None) == (kind == "folder")
    draft = load_draft(str(out), spec, store, EngineConfig(num_blocks=8, max_fixed_rows=0))
    try:
        ids = recorded[0].prompt[:8]
        draft.engine.open(1, ids)
        blocks = np.arange(2, dtype=np.int32)
        (rows,) = draft.engine.step([SequenceSlice(1, ids, 0, blocks, 1)])
        assert rows.ids is not None and rows.ids[0].tolist() == made.head_ids.tolist()
        assert np.isfinite(rows.logits).all()
    finally:
        draft.engine.close()


def untrained(spec: ModelSpec, store: ModelStore, run: Path) -> None:
    """What training would begin with."""
    target = open_target(spec, store)
    vocabulary = load_vocabulary(spec, store)
    ids = head_ids(load(run.parent / "replies"), 64, vocabulary.stop_ids, vocabulary.size)
    tensors = target.student_tensors((0, 2), ids)
    fields = {name: getattr(target.geometry, name) for name in Geometry.__slots__}
    geometry = Geometry(**fields | {"block_count": 2})
    StudentWeights(geometry, tensors, ids, {}).save(run / STUDENT_FILE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_begins_with_what_can_be_taken_over(tmp_path: Path, architecture: str) -> None:
    path = write_target(tmp_path / "m.gguf", architecture)
    target = TargetFile(path)
    geometry = target.geometry
    assert geometry.head_count * geometry.rope_dimension_count == geometry.embedding_length == 64
    ids = np.array([3, 5, 8], np.uint32)
    tensors = target.student_tensors((0, 2), ids)
    np.testing.assert_array_equal(tensors[OUTPUT], target.embedding()[ids])
    file = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}
    taken = np.array_equal(tensors["blk.1.attn_v.weight"], file["blk.2.attn_v.weight"])
    assert taken == (architecture != "qwen3")
    np.testing.assert_array_equal(target.embedding(), file[EMBEDDING])
    if architecture == "qwen2":
        rows = np.sort(tensors["blk.0.attn_q.weight"].sum(1))
        np.testing.assert_allclose(rows, np.sort(file["blk.0.attn_q.weight"].sum(1)), rtol=1e-5)


def test_a_file_that_does_not_say_its_sizes_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "odd")
    writer.add_token_list(["a"])
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ArtifactCorruptError, match=r"odd\.embedding_length"):
        assert TargetFile(path).geometry


def test_a_folder_with_safetensors_is_refused_with_what_can_be_taken(defined: Path) -> None:
    small = Small("LlamaForCausalLM", 288, width=64, heads=2, kv_heads=1, head_size=32, inner=64)
    tensors = random_tensors(small)
    folder = write_checkpoint(defined / "m", small, tensors, small_tokenizer("gpt-2"))
    spec = define(defined, f"dir:{folder}")
    with pytest.raises(UnsupportedModelError, match=r"safetensors.* name the same model as a GGUF"):
        open_target(spec, ModelStore(default_root()))
