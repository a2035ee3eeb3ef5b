"""`outrider prefixes`: what replicas have pinned."""

from __future__ import annotations

from typing import Any

from outrider.cli.prefixes import lines, listed

PREFIX = {"name": "support", "tokens": 70, "tenants": ["acme", "ajax"]}


def test_a_prefix_is_listed_once_with_all_that_have_it() -> None:
    replicas: list[dict[str, Any]] = [
        {"name": "a", "model": "m", "static_prefixes": [PREFIX]},
        {"name": "b", "model": "m", "static_prefixes": [PREFIX]},
        {"name": "c", "model": "n", "static_prefixes": [PREFIX | {"tokens": 64}]},
        {"name": "d", "model": "n", "static_prefixes": []},
    ]
    found = listed(replicas)
    assert found == [
        PREFIX | {"model": "m", "replicas": ["a", "b"]},
        PREFIX | {"model": "n", "tokens": 64, "replicas": ["c"]},
    ]
    _, first, second = lines(found)
    assert first.split() == ["support", "m", "70", "acme,", "ajax", "a,", "b"]
    assert second.split() == ["support", "n", "64", "acme,", "ajax", "c"]


def test_without_any_it_says_how() -> None:
    (line,) = lines(listed([{"name": "a", "model": "m", "static_prefixes": []}]))
    assert "[[inference.prefixes]]" in line
