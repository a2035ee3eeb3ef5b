"""An engine over texts: whose rows are compared with which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.errors import ConfigError
from outrider.fidelity.comparing import compare, engine_rows, expected
from outrider.fidelity.measure import Tally
from outrider.fidelity.reference import Ids, Reference
from tests.fidelity.engines import ReferenceEngine
from tests.fidelity.models import Shape, weights, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.gguf", Shape(), weights(Shape()))


def ids(count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, Shape().vocabulary, count).astype(np.int32)


def test_an_engine_of_the_same_rows_is_faithful(path: Path) -> None:
    reference, engine = Reference(path), ReferenceEngine(path)
    documents = [ids(70), ids(32, 1), ids(33, 2), ids(2, 3)]
    told: list[int] = []
    found = compare(engine, reference, expected(reference, documents, lambda _: None), told.append)
    assert found.num_positions == 69 + 31 + 32 + 1
    assert found.argmax_agreement == 1
    assert found.ppl_ratio == pytest.approx(1)
    assert found.kl == pytest.approx(0, abs=1e-6)
    assert told == [32, 32, 6, 32, 32, 1, 2]


def test_a_noisy_engine_is_measured_as_its_rows_say(path: Path) -> None:
    reference, engine = Reference(path), ReferenceEngine(path, noise=0.5)
    document = ids(70)
    (known,) = expected(reference, [document], lambda _: None)
    rows = np.concatenate([part.copy() for _, part in engine_rows(engine, document, 9)])
    tally = Tally()
    tally.add(reference.logits(known.states)[:-1], rows[:-1], document[1:].tolist())
    found, whole = compare(engine, reference, [known]), tally.figures()
    assert found.kl == pytest.approx(whole.kl, rel=1e-4)
    assert found.perplexity == pytest.approx(whole.perplexity, rel=1e-5)
    assert found.argmax_agreement == whole.argmax_agreement < 1


def test_blocks_cover_every_call_with_its_scratch(path: Path) -> None:
    engine = ReferenceEngine(path)
    assert [past for past, _ in engine_rows(engine, ids(64), 24)] == [0, 24, 48]
    for part in engine.slices:
        assert len(part.blocks) * 32 >= 65
        assert part.num_rows == len(part.tokens)


def test_an_engine_of_candidates_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="candidates alone"):
        next(engine_rows(ReferenceEngine(path, num_candidates=8), ids(4)))
