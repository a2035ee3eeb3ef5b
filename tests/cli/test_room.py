"""What a replica takes by its settings, and what doctor says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.cli.doctor import memory_finding
from outrider.cli.local import up
from outrider.cli.local.mesh import MeshOptions, ServedModel
from outrider.cli.local.preparing import check_memory
from outrider.cli.local.room import (
    SERVICES_BYTES,
    UNKNOWN_DRAFTER_BYTES,
    drafter_bytes,
    replica_footprint,
)
from outrider.engines.draft_loading import shipped_draft
from outrider.engines.footprint import PROCESS_BYTES
from outrider.engines.free_memory import FreeMemory
from outrider.engines.kv_budget import FLOOR_BYTES
from outrider.engines.model_size import ModelSize
from outrider.errors import ConfigError
from outrider.models.catalog import DEFAULT_MODEL, load_catalog, use
from outrider.models.definitions import EngineDefaults, ModelSpec
from outrider.models.store import ModelStore
from tests.models.test_folder import write_folder

GIB = 1 << 30
SIZE = ModelSize(weights_bytes=665_000_000, vocabulary_size=151_936, num_layers=24, kv_values=256)


def test_the_pool_that_is_asked_for_counts() -> None:
    assert replica_footprint(SIZE, {}).kv_bytes == FLOOR_BYTES
    assert replica_footprint(SIZE, {"kv_bytes": GIB}).kv_bytes == GIB
    blocks = {"num_blocks": 100, "kv_bytes": GIB, "precision": "f32"}
    assert replica_footprint(SIZE, blocks).kv_bytes == 100 * 32 * 24 * 256 * 4
    context = {"max_context_tokens": 32_768, "precision": "bf16"}
    assert replica_footprint(SIZE, context).kv_bytes == 32_768 * 24 * 256 * 2


def test_four_bits_a_weight_take_less() -> None:
    size = replace(SIZE, packed_bytes=SIZE.weights_bytes // 2)
    full, few = (replica_footprint(size, {"weight_bits": bits}) for bits in (8, 4))
    assert 0.7 * full.model_bytes < few.model_bytes < 0.8 * full.model_bytes
    assert replica_footprint(size, {}) == full


def test_a_value_of_another_type_is_left_to_the_service() -> None:
    assert replica_footprint(SIZE, {"kv_bytes": "much"}) == replica_footprint(SIZE, {})


def test_models_for_few_rows_follow_from_what_is_free() -> None:
    free = FreeMemory(16 * GIB, "a test")
    assert 0 < replica_footprint(SIZE, {}, free).fixed_bytes < 2 * GIB
    assert replica_footprint(SIZE, {"max_fixed_rows": 0}, free).fixed_bytes == 0
    assert replica_footprint(SIZE, {}, FreeMemory(GIB, "a test")).fixed_bytes == 0


def test_doctor_names_what_is_needed_and_what_to_do() -> None:
    big = ModelSpec("big", "file:/m")
    good = memory_finding([(big, SIZE)], FreeMemory(16 * GIB, "a test"))
    assert good.ok
    assert "16.0 GiB free; a replica of big takes 1." in good.what
    bad = memory_finding([(big, SIZE)], FreeMemory(2 * GIB, "a test"))
    assert not bad.ok
    assert "a test leaves 2048 MiB" in bad.fix
    assert memory_finding([(big, SIZE)], None).ok


def test_a_definitions_settings_count() -> None:
    free = FreeMemory(16 * GIB, "a test")
    long = ModelSpec("long", "file:/m", max_context_tokens=1 << 20)
    assert not memory_finding([(long, SIZE)], free).ok
    slow = ModelSpec("slow", "file:/m", engine=EngineDefaults(max_fixed_rows=0))
    assert "0.0 GiB more for fast small calls" in memory_finding([(slow, SIZE)], free).what

    options = MeshOptions(
        (ServedModel("m"),),
        tables={"inference": {"precision": "bf16", "max_context_tokens": 2048}},
        settings=("inference.max_context_tokens=1024",),
    )
    told = {"precision": "bf16", "max_context_tokens": 1024}
    assert up._inference_settings(options) == told


def test_the_replicas_of_all_models_count_together() -> None:
    one = replica_footprint(SIZE, {}).needed_bytes
    models = [ModelSpec("big", "file:/m"), ModelSpec("other", "file:/n")]
    sizes = [(spec, SIZE) for spec in models]
    fits = FreeMemory(4 * one + SERVICES_BYTES + GIB, "a test")
    assert memory_finding(sizes, fits, GIB).ok
    full = memory_finding(sizes, FreeMemory(fits.num_bytes - 1, "a test"), GIB)
    assert not full.ok
    assert "for each of 2 replicas of big" in full.fix
    assert "for each of 2 replicas of other" in full.fix


def test_up_refuses_a_context_that_no_memory_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    config = {"vocab_size": 512, "num_hidden_layers": 64, "hidden_size": 8192}
    config |= {"num_attention_heads": 64, "max_position_embeddings": 1 << 24}
    folder = write_folder(tmp_path / "m", **{"config.json": config})
    spec = ModelSpec("m", f"dir:{folder}", max_context_tokens=1 << 24)
    ModelStore(tmp_path / "store").pull(spec.source)
    with pytest.raises(ConfigError, match="MiB"):
        check_memory([(spec, 1)], {})
    check_memory([(spec, 1)], {"max_context_tokens": 1024})


def test_a_drafter_takes_what_its_draft_does(tmp_path: Path, user_models: Path) -> None:
    user_models.parent.mkdir()
    user_models.write_text("")
    store = ModelStore(tmp_path / "store")
    config = {"vocab_size": 512, "num_hidden_layers": 2, "hidden_size": 64}
    config |= {"num_attention_heads": 2, "max_position_embeddings": 128}
    taken = {}
    for name, num_bytes in (("small", 1 << 20), ("large", 64 << 20)):
        folder = write_folder(
            tmp_path / name, **{"config.json": config, "openvino_model.bin": bytes(num_bytes)}
        )
        store.pull(f"dir:{folder}")
        definitions = tmp_path / f"{name}.toml"
        definitions.write_text(f'[models.{name}]\nsource = "dir:{folder}"\n')
        use(load_catalog(definitions))
        taken[name] = drafter_bytes(DEFAULT_MODEL, name, store)
    assert taken["small"] > PROCESS_BYTES
    assert taken["large"] - taken["small"] == pytest.approx(1.05 * (63 << 20), rel=0.01)


def test_the_shipped_draft_is_measured_by_its_file_and_no_drafter_takes_nothing(
    tmp_path: Path,
) -> None:
    store = ModelStore(tmp_path / "store")
    shipped = drafter_bytes(DEFAULT_MODEL, "", store)
    path = shipped_draft(DEFAULT_MODEL)
    assert path is not None
    assert shipped > PROCESS_BYTES + path.stat().st_size
    assert drafter_bytes(DEFAULT_MODEL, str(path), store) == shipped
    assert drafter_bytes(DEFAULT_MODEL, "none", store) == 0
    assert drafter_bytes(ModelSpec("mine", "file:/m"), "", store) == 0, "nothing is shipped for it"


@pytest.mark.parametrize("choice", ["not-defined", "/no/such.gguf", "smollm2-135m-instruct"])
def test_a_draft_that_cannot_be_read_counts_as_one_of_usual_size(
    choice: str, tmp_path: Path
) -> None:
    assert drafter_bytes(DEFAULT_MODEL, choice, ModelStore(tmp_path)) == UNKNOWN_DRAFTER_BYTES
