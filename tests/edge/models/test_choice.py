"""Which model a request gets, and what those are told who get none."""

from __future__ import annotations

import pytest

from outrider.errors import UnknownModelError
from services.edge.models.choice import choose, usable

SERVED = ("a", "b", "c")


def test_the_first_that_a_client_may_use_is_the_default() -> None:
    assert choose("", SERVED, ("*",)) == "a"
    assert usable(SERVED, ()) == [], "an empty list is of none"
    assert choose("", SERVED, ("c", "b")) == "b"
    assert choose("c", SERVED, ("c", "b")) == "c"
    assert usable(SERVED, ("c", "gone")) == ["c"]


def test_a_forbidden_model_is_as_unknown_as_one_that_is_nowhere() -> None:
    texts = set()
    for asked in ("a", "x"):
        with pytest.raises(UnknownModelError) as refused:
            choose(asked, SERVED, ("b",))
        texts.add(refused.value.message.replace(repr(asked), "?"))
    assert texts == {"there is no model ? here; there is b"}


@pytest.mark.parametrize(("served", "allowed"), [((), ("*",)), (SERVED, ()), (SERVED, ("gone",))])
def test_who_may_use_none_is_told_of_none(
    served: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    for asked in ("", "a"):
        with pytest.raises(UnknownModelError, match="may use none of the models here"):
            choose(asked, served, allowed)


def test_a_long_list_is_cut() -> None:
    with pytest.raises(UnknownModelError, match="m15 and 4 more"):
        choose("x" * 1000, [f"m{number}" for number in range(20)], ("*",))
