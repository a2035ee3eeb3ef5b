"""The default model as it is served says what its file says, on short texts."""

from __future__ import annotations

import math

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.openvino.loading import load_engine
from outrider.fidelity.comparing import Expected, compare, expected
from outrider.fidelity.measure import IN_F32, SERVED, Bounds, Fidelity
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
"""Of 60 to 120 tokens each."""


@pytest.fixture(scope="module")
def reference(model_store: ModelStore) -> Reference:
    return Reference(model_store.path(DEFAULT_MODEL.source))


@pytest.fixture(scope="module")
def documents(reference: Reference, vocabulary: Vocabulary) -> list[Expected]:
    ids = [Text("", content).encode(vocabulary) for content in TEXTS]
    return expected(reference, ids, lambda _: None)


@pytest.mark.parametrize(
    ("bounds", "config"),
    [
        (SERVED, EngineConfig(num_blocks=16, max_fixed_rows=0)),
        (
            IN_F32,
            EngineConfig(
                num_blocks=16, max_fixed_rows=0, precision="f32", dynamic_quantization=False
            ),
        ),
    ],
    ids=["as served", "in f32"],
)
def test_the_engine_says_what_the_file_says(
    bounds: Bounds,
    config: EngineConfig,
    model_store: ModelStore,
    reference: Reference,
    documents: list[Expected],
) -> None:
    engine = load_engine(DEFAULT_MODEL, model_store, config)
    found = compare(engine, reference, documents)
    engine.close()
    assert _widened(bounds, found).broken_by(found) == []


def _widened(bounds: Bounds, found: Fidelity) -> Bounds:
    """By two standard errors: over so few positions the figures scatter. Of the perplexities'
    logarithms that is sqrt(2 KL / n), for small independent errors."""
    least, count = bounds.min_argmax_agreement, found.num_positions
    return Bounds(
        max_ppl_ratio=bounds.max_ppl_ratio * math.exp(2 * math.sqrt(2 * found.kl / count)),
        max_kl=bounds.max_kl,
        min_argmax_agreement=least - 2 * math.sqrt(least * (1 - least) / count),
    )
