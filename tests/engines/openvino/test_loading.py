"""What a caller is told while an engine loads, and that it may end the loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engines.load_stage import LoadStage
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import ModelSpec
from outrider.models.disk.files import file_sha256
from outrider.models.store import ModelStore
from tests.engines.openvino.test_formats import CONFIG, SHAPE, VOCABULARY, tensors_of
from tests.fidelity.models import write


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    file = write(tmp_path / "m.gguf", SHAPE, tensors_of("llama"), vocabulary=VOCABULARY)
    return ModelSpec("small", f"file:{file}", file_sha256(file))


def test_stages_are_reported_as_they_begin_and_a_model_is_converted_once(
    spec: ModelSpec, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path / "store")
    for first in ([LoadStage.CONVERT], []):
        stages: list[LoadStage] = []
        load_engine(spec, store, CONFIG, stages.append).close()
        assert stages == [*first, LoadStage.COMPILE, LoadStage.COMPARE]


class EnoughError(Exception):
    """The caller wants no engine any more."""


@pytest.mark.parametrize("last", [LoadStage.CONVERT, LoadStage.COMPILE, LoadStage.COMPARE])
def test_a_report_that_raises_ends_the_loading_and_the_next_one_works(
    spec: ModelSpec, tmp_path: Path, last: LoadStage
) -> None:
    store = ModelStore(tmp_path / "store")

    def report(stage: LoadStage) -> None:
        if stage is last:
            raise EnoughError

    with pytest.raises(EnoughError):
        load_engine(spec, store, CONFIG, report)
    load_engine(spec, store, CONFIG).close()
