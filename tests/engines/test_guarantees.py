"""What engines promise is declared for each, and the page says the same."""

from __future__ import annotations

from typing import get_args

import pytest

from outrider.engines.config import EngineName
from outrider.engines.guarantees import ENGINES, Guarantee, held
from outrider.engines.turn.base import Ability
from outrider.engines.turn.fake import FakeTurnEngine
from outrider.engines.turn.openai_server.completions import VLLM_ABILITIES
from tools.engine_table import GUIDE, written

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


def test_the_page_has_the_table_as_the_code_is() -> None:
    page = GUIDE.read_text("utf-8")
    assert written(page) == page, "run python -m tools.engine_table"


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
