"""What engines promise is declared for each, and the page says the same."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from outrider.engines.config import EngineName
from outrider.engines.guarantees import ENGINES, Guarantee, held
from outrider.engines.turn.base import Ability
from outrider.engines.turn.fake import FakeTurnEngine
from outrider.engines.turn.openai_server.completions import VLLM_ABILITIES
from tools.engine_table import BEGIN, PAGES, ROOT, main, written

_PENALTIES = {
    *(Ability.REPETITION_PENALTY, Ability.PRESENCE_PENALTY, Ability.FREQUENCY_PENALTY),
    Ability.LOGIT_BIAS,
}
NEEDED = {
    Guarantee.SAMPLING: {Ability.TOP_K, Ability.MIN_P, Ability.SEED},
    Guarantee.PENALTIES: _PENALTIES,
    Guarantee.LOGPROBS: {Ability.LOGPROBS},
    Guarantee.GRAMMARS: {Ability.JSON_SCHEMA, Ability.JSON_OBJECT, Ability.REGEX},
    Guarantee.ISOLATION: {Ability.SALT},
}
"""Abilities that a turn engine's promise stands for."""


def test_every_engine_is_declared() -> None:
    assert set(ENGINES) == set(get_args(EngineName))


def test_the_pages_have_the_tables_as_the_code_is() -> None:
    assert main(["--check"]) == 0, "run python -m tools.engine_table"


def test_a_page_with_another_table_is_found_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    readme = tmp_path / "README.md"
    right = readme.read_text("utf-8")
    readme.write_text(right.replace("| `torch` | ", "| `torch` | everywhere, "), "utf-8")
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err.startswith("README.md is not")
    assert main([], tmp_path) == 0
    assert readme.read_text("utf-8") == right


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place"):
        written(f"{BEGIN} and no end", "")


def test_an_inexact_configuration_promises_less() -> None:
    lost = set(held("openvino", exact=True)) - set(held("openvino", exact=False))
    assert lost == {Guarantee.EXACT, Guarantee.EXACT_MOVES}


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("fake-turns", FakeTurnEngine().info.abilities),
        ("openai-server", VLLM_ABILITIES),
        ("vllm", frozenset(Ability)),
    ],
)
def test_turn_engines_promise_what_they_are_able_to(
    name: EngineName, abilities: frozenset[Ability]
) -> None:
    promised = set(ENGINES[name].holds)
    assert {it for it, needed in NEEDED.items() if needed <= abilities} == promised & set(NEEDED)
    assert not promised & {Guarantee.EXACT, Guarantee.DRAFTS, Guarantee.KV_TRANSFER}
