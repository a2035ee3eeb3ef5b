"""Every fuzz target for a second or so, and for longer; `python -m tests.fuzz` takes as long as one
likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import OutriderError
from tests.fuzz.mutating import Mutator
from tests.fuzz.running import feed
from tests.fuzz.targets import targets

_NAMES = [target.name for target in targets()]


@pytest.mark.parametrize("num_inputs", [1500, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", _NAMES)
def test_damaged_input_gets_an_answer_or_an_error_of_ours(
    name: str, num_inputs: int, tmp_path: Path
) -> None:
    target = next(one for one in targets(tmp_path) if one.name == name)
    mutator = Mutator(target.seeds, seed=1)
    for _ in range(num_inputs):
        broken = feed(target, mutator)
        assert broken is None, broken.what
    assert mutator.num_answers > 1


@pytest.mark.parametrize("name", _NAMES)
def test_what_a_target_begins_with_is_good(name: str, tmp_path: Path) -> None:
    target = next(one for one in targets(tmp_path) if one.name == name)
    good = 0
    for seed in target.seeds:
        try:
            good += target.parse(seed) is not None
        except OutriderError:
            continue
    assert good, "no seed is understood: the target tests nothing but refusals"
