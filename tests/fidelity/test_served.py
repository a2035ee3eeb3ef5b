"""The default model as it is served says what its file says, on short texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.loading import load_engine
from outrider.fidelity.comparing import Expected, compare, expected
from outrider.fidelity.measure import BOUNDS, Precision
from outrider.fidelity.reference import Reference
from outrider.fidelity.texts import Text
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary

pytestmark = pytest.mark.model

TEXTS = (
    "Water boils at a lower temperature on a high mountain, because the air there presses less on "
    "its surface. Potatoes therefore take longer to cook: the water is boiling, but it is not as "
    "hot as it would be at the sea. A pot with a lid that closes tightly helps, because the steam "
    "that it holds back raises the pressure.",
    "def mean(values: list[float]) -> float:\n"
    '    """The arithmetic mean; ValueError for an empty list."""\n'
    "    if not values:\n"
    '        raise ValueError("mean of no values")\n'
    "    return sum(values) / len(values)\n\n\n"
    "def variance(values: list[float]) -> float:\n"
    "    center = mean(values)\n"
    "    return mean([(value - center) ** 2 for value in values])\n",
    "### user\nName three things that every bicycle tour needs.\n### assistant\n"
    "Here are three things that every bicycle tour needs:\n\n"
    "1. **Water:** Take at least one liter for every two hours, and more if it is hot.\n"
    "2. **A repair kit:** A spare tube, tire levers and a small pump fix the most common problem.\n"
    "3. **A map:** A phone may run out of battery. A paper map does not.\n",
    "Am Morgen lag Nebel über dem Fluss. Die Fähre wartete am anderen Ufer, und niemand wusste, "
    "wann sie kommen würde. Erst als die Sonne höher stand, hörten wir den Motor.",
)
"""Of 60 to 90 tokens each."""


@pytest.fixture(scope="module")
def reference(model_store: ModelStore) -> Reference:
    return Reference(model_store.path(DEFAULT_MODEL.source))


@pytest.fixture(scope="module")
def documents(reference: Reference, vocabulary: Vocabulary) -> list[Expected]:
    ids = [Text("", content).encode(vocabulary) for content in TEXTS]
    return expected(reference, ids, lambda _: None)


@pytest.fixture(params=["bf16", "f32"])
def precision(request: pytest.FixtureRequest) -> Precision:
    chosen: Precision = request.param
    return chosen


@pytest.fixture
def engine(model_store: ModelStore, precision: Precision) -> Iterator[OpenVinoEngine]:
    config = EngineConfig(num_blocks=16, precision=precision, max_fixed_rows=0)
    engine = load_engine(DEFAULT_MODEL, model_store, config)
    yield engine
    engine.close()


def test_the_engine_says_what_the_file_says(
    engine: OpenVinoEngine,
    precision: Precision,
    reference: Reference,
    documents: list[Expected],
) -> None:
    found = compare(engine, reference, documents)
    assert BOUNDS[precision].broken_by(found) == []
