"""Two replicas behind one name: the one that serves a chat is killed, the other one may compute
differently: other weights, another instruction set, another precision."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from outrider.engines.cpu_features import cpu_flags
from outrider.engines.openvino.convert import derived_name
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import NoReplicaError
from outrider.model_identity import short_form
from outrider.models.definitions import as_table, to_toml
from outrider.models.disk.derived import MANIFEST
from outrider.models.store import ModelStore
from services.inference.config import InferenceConfig
from services.inference.model import load_model
from tests.e2e.two_replicas import Kind, SmallMesh, small_mesh
from tests.engines.shallow_model import ShallowModel, computes_in_bf16
from tests.router.relay.scripted import World

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def fake(seed: int) -> Kind:
    """A fake engine: another seed is other weights."""
    return Kind({"engine": "fake", "fake_seed": seed, "fake_call_ms": 2.0})


async def test_an_equal_replica_goes_on_and_no_byte_differs(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, fake(0), fake(0)) as mesh:
        assert len({replica.model_identity for replica in await mesh.listed()}) == 1
        whole = await mesh.ask()
        interrupted = await mesh.ask(kills=True)
    assert (interrupted.text, interrupted.ids) == (whole.text, whole.ids)
    assert not whole.inexact and not interrupted.inexact


async def check_two_models(mesh: SmallMesh) -> None:
    """A reply ends with its replica."""
    one, other = [replica.model_identity.hex()[:8] for replica in await mesh.listed()]
    assert one != other
    with pytest.raises(NoReplicaError) as caught:
        await mesh.ask(kills=True)
    message = caught.value.message
    for said in (one, other, "compute differently", "allow_inexact"):
        assert said in message
    alone = await mesh.ask()
    assert len(alone.ids) == mesh.num_tokens and not alone.inexact, "new chats go anywhere"


async def check_inexact_moves(mesh: SmallMesh) -> None:
    """The operator lets the other one go on, and the client is told."""
    before = {replica.model_identity for replica in await mesh.listed()}
    await mesh.allow_inexact()
    again = {replica.model_identity for replica in await mesh.listed()}
    assert again == before, "a process that is started again computes the same"
    num_kills = [replica.num_kills for replica in mesh.replicas]
    result = await mesh.ask(kills=True)
    (left,) = [
        it for it, count in zip(mesh.replicas, num_kills, strict=True) if it.num_kills == count
    ]
    assert result.inexact and result.replica == left.name
    assert len(result.ids) == mesh.num_tokens
    counted = f'outrider_router_inexact_moves_total{{replica="{left.name}"}} 1.0'
    async with asyncio.timeout(60):
        while counted not in await mesh.router.metrics():
            await asyncio.sleep(0.02)
    assert not (await mesh.ask()).inexact


async def test_other_weights_behind_the_name_are_another_model(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, fake(0), fake(1)) as mesh:
        await check_two_models(mesh)
        await check_inexact_moves(mesh)


REAL = {
    **{"engine": "openvino", "precision": "f32", "threads": 1, "num_blocks": 64},
    **{"max_fixed_rows": 0, "warm_up_rows": 0},
}


def restricted_instructions() -> dict[str, str]:
    """What makes oneDNN compute as on a CPU with an older instruction set. OpenVINO still takes the
    CPU for what it is, so not every older one works: it has packed the weights for VNNI."""
    if not {"avx512f", "avx_vnni"} <= cpu_flags():
        pytest.skip("this CPU offers no second instruction set: it needs AVX-512 and AVX-VNNI")
    return {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}


def other_precision() -> str:
    if not computes_in_bf16():
        pytest.skip("this CPU offers no second precision: it has no instructions for bf16")
    return "bf16"


OTHERS: Mapping[str, Callable[[], Kind]] = {
    "of an older CPU": lambda: Kind(REAL, restricted_instructions()),
    "in bf16": lambda: Kind({**REAL, "precision": other_precision()}),
}


@pytest.fixture
def defined(
    shallow_model: ShallowModel, user_models: Path, monkeypatch: pytest.MonkeyPatch
) -> ShallowModel:
    """Found by its name, here and in processes started from here, which need not convert it."""
    _ = shallow_model.converted
    user_models.parent.mkdir()
    user_models.write_text(to_toml({shallow_model.spec.name: as_table(shallow_model.spec)}))
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(shallow_model.store.root))
    return shallow_model


@pytest.mark.parametrize("other", OTHERS)
async def test_the_same_weights_computed_otherwise_are_another_model(
    other: str, defined: ShallowModel, tmp_path: Path
) -> None:
    """One file and one engine: what differs is the instruction set, as between two generations of
    CPUs, or the precision."""
    kinds = Kind(REAL), OTHERS[other]()
    async with small_mesh(tmp_path, *kinds, model=defined.spec.name, num_tokens=200) as mesh:
        await check_two_models(mesh)


def load(name: str, store: ModelStore) -> bytes:
    """The identity of a replica that loads a model from this store."""
    config = InferenceConfig(
        model=name, model_store=store.root, max_fixed_rows=0, warm_up_rows=0, num_blocks=16
    )
    model = load_model(config)
    model.engine.close()
    return model.identity


def change_a_weight(source: Path, folder: Path) -> None:
    """Copy a converted model with one bit of one weight flipped."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / MANIFEST).unlink()
    with (folder / "openvino_model.bin").open("r+b") as file:
        middle = file.seek(0, os.SEEK_END) // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 0x40]))


async def test_one_weight_that_was_changed_on_disk_is_another_model(
    defined: ShallowModel, tmp_path: Path
) -> None:
    """The model file and all names are the same; only what is computed is not."""
    spec, original = defined.spec, defined.converted.directory
    other = ModelStore(tmp_path / "other")
    for part in ("index", "blobs"):
        shutil.copytree(defined.store.root / part, other.root / part)
    artifact = other.load(spec.source, sha256=spec.sha256)
    name = derived_name(DEFAULT_LAYOUT)
    other.derived(artifact, name, lambda folder: change_a_weight(original, folder))
    known, changed = load(spec.name, defined.store), load(spec.name, other)
    assert len(known) == len(changed) == 32 and known != changed
    world = World(1, identities={"near": known, "far": changed})
    world.open(1, seed=1, length=40)
    await world.tick("near")
    world.kill("near")
    await world.wait(31.0)
    error = world.chats[1].error
    assert isinstance(error, NoReplicaError) and short_form(changed) in error.message
    world.mesh.metrics.close()
