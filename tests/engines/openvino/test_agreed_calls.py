"""What is remembered of which calls agree: used only where everything is as it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engines import cpu_features
from outrider.engines.config import EngineConfig
from outrider.engines.cpu_features import cpu_identity
from outrider.engines.openvino.agreed_calls import MAX_FILES, known_facts, recall, remember
from outrider.engines.openvino.consistency import Agreement
from outrider.engines.openvino.convert import ConvertedModel
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.models.disk.derived import MANIFEST
from tests.engines.shallow_model import ShallowModel

FACTS = {"cpu": "family 6", "sizes": [1, 2, 4], "environment": {"OV_X": "1"}, "quantum": 16}
FOUND = Agreement(min_logits=2, min_rows=1, max_rows=64)
CONFIG = EngineConfig(num_blocks=40, max_fixed_rows=0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A converted model's, as far as this is concerned."""
    directory = tmp_path / "ir-v3"
    directory.mkdir()
    (directory / MANIFEST).write_text("{}")
    return directory


def the_file(directory: Path) -> Path:
    (file,) = directory.parent.glob("agreed-calls-*.json")
    return file


@pytest.mark.parametrize("max_rows", [0, 48, 128])
def test_an_answer_is_remembered(directory: Path, max_rows: int) -> None:
    assert recall(directory, FACTS) is None
    found = FOUND._replace(max_rows=max_rows)
    remember(directory, FACTS, found)
    assert recall(directory, FACTS) == found


@pytest.mark.parametrize(
    "changed",
    [{"cpu": "family 7"}, {"sizes": [2, 4]}, {"environment": {}}, {"quantum": 8}, {"more": ""}],
)
def test_it_is_the_answer_for_these_facts_alone(
    directory: Path, changed: dict[str, object]
) -> None:
    remember(directory, FACTS, FOUND)
    assert recall(directory, {**FACTS, **changed}) is None
    remember(directory, {**FACTS, **changed}, FOUND._replace(max_rows=128))
    assert recall(directory, FACTS) == FOUND


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"max_rows": 64', '"max_rows": 0'),
        lambda text: text.replace("family 6", "family 7"),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: json.dumps({**json.loads(text), "more": 1}),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_replaced(
    directory: Path, damage: Callable[[str], str]
) -> None:
    remember(directory, FACTS, FOUND)
    file = the_file(directory)
    file.write_text(damage(file.read_text()))
    assert recall(directory, FACTS) is None
    remember(directory, FACTS, FOUND)
    assert recall(directory, FACTS) == FOUND


@pytest.mark.parametrize("answer", ["64", -1, 6.5, True, None])
def test_what_is_no_number_of_rows_is_no_answer(directory: Path, answer: Any) -> None:
    remember(directory, FACTS, FOUND._replace(min_rows=answer))
    assert recall(directory, FACTS) is None


def test_a_store_that_cannot_be_written_is_no_error(directory: Path) -> None:
    remember(directory, FACTS, FOUND)
    file = the_file(directory)
    file.unlink()
    file.mkdir()
    remember(directory, FACTS, FOUND)
    assert recall(directory, FACTS) is None


def test_a_model_keeps_the_newest_answers_alone(directory: Path) -> None:
    other = directory.parent / "facts.json"
    other.write_text("{}")
    all_facts = [{**FACTS, "quantum": number} for number in range(MAX_FILES + 3)]
    for facts in reversed(all_facts):
        for file in directory.parent.glob("agreed-calls-*.json"):
            older = file.stat().st_mtime_ns - 10**9  # however finely the disk tells times
            os.utime(file, ns=(older, older))
        remember(directory, facts, FOUND)
    known = [recall(directory, facts) for facts in all_facts]
    assert known == [FOUND] * MAX_FILES + [None] * 3
    assert other.exists()


class Compiled:
    """Properties of a compiled model."""

    def __init__(self, **properties: object) -> None:
        self._properties = properties

    def get_property(self, name: str) -> object:
        return {**self._properties, "SUPPORTED_PROPERTIES": dict.fromkeys(self._properties)}[name]


def test_facts_are_those_of_model_machine_and_library(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Compiled(INFERENCE_PRECISION_HINT="bf16", NETWORK_NAME="Model7")
    facts = known_facts(directory, compiled, {"fingerprint": "ab"})
    assert facts is not None
    assert facts["cpu"] == cpu_identity() and "flags" in facts["cpu"]
    assert facts["properties"] == {"INFERENCE_PRECISION_HINT": "bf16"}
    assert facts["fingerprint"] == "ab"
    assert known_facts(directory, compiled, {"fingerprint": "ab"}) == facts
    assert known_facts(directory, Compiled(INFERENCE_PRECISION_HINT="f32"), {}) != facts
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert known_facts(directory, compiled, {"fingerprint": "ab"}) != facts
    monkeypatch.undo()
    (directory / MANIFEST).write_text('{"openvino_model.bin": [1, "00"]}')
    assert known_facts(directory, compiled, {"fingerprint": "ab"}) != facts


def test_nothing_is_known_of_a_model_without_a_manifest_or_an_unknown_cpu(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "_CPUINFO", directory / "nothing")
    cpu_identity.cache_clear()
    try:
        assert cpu_identity() == ""
        assert known_facts(directory, Compiled(), {}) is None
    finally:
        monkeypatch.undo()
        cpu_identity.cache_clear()
    (directory / MANIFEST).unlink()
    assert known_facts(directory, Compiled(), {}) is None


def test_nothing_is_known_where_openvino_does_not_tell_a_property(directory: Path) -> None:
    class Silent(Compiled):
        def get_property(self, name: str) -> object:
            if name == "SUPPORTED_PROPERTIES":
                return {"NUM_STREAMS": "RO"}
            raise RuntimeError("no such property")

    assert known_facts(directory, Silent(), {}) is None


def test_equal_processors_are_equal_whatever_their_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(mhz: float, flags: str) -> str:
        cores = [f"processor : {core}\ncpu MHz : {mhz + core}\nflags : {flags}" for core in (0, 1)]
        (tmp_path / "cpuinfo").write_text("\n\n".join(cores))
        cpu_identity.cache_clear()
        return cpu_identity()

    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")
    try:
        assert identity(2000, "avx2") == identity(3100, "avx2")
        assert identity(2000, "avx2") != identity(2000, "avx2 avx512f")
    finally:
        cpu_identity.cache_clear()


@pytest.mark.model
def test_a_second_start_goes_by_the_answer_of_the_first(
    shallow_model: ShallowModel, tmp_path: Path
) -> None:
    source = shallow_model.converted
    directory = tmp_path / "ir"
    shutil.copytree(source.directory, directory)

    def agreed(config: EngineConfig = CONFIG) -> Agreement:
        engine = OpenVinoEngine(ConvertedModel(directory, source.facts), config)
        engine.close()
        layout = engine._model.layout
        return Agreement(layout.min_logits, layout.sizing.padded(1), layout.max_rows)

    found = agreed()
    written = json.loads(the_file(directory).read_text())
    assert Agreement(**written["agreement"]) == found
    other = Agreement(found.min_logits + 1, 8, 48)
    remember(directory, written["facts"], other)
    assert agreed() == other
    assert agreed(replace(CONFIG, dynamic_quantization=False)).max_rows == found.max_rows
    assert len(list(tmp_path.glob("agreed-calls-*.json"))) == 2
    (directory / MANIFEST).unlink()
    assert agreed() == found
