"""The catalogue: names, never sources."""

from __future__ import annotations

import re

import pytest

from outrider.errors import UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL, lookup, names
from outrider.models.sources import parse_source


def test_the_empty_name_is_the_default() -> None:
    assert lookup("") is DEFAULT_MODEL
    assert lookup("smollm2-135m-instruct") is DEFAULT_MODEL


def test_an_unknown_name_is_told_which_there_are() -> None:
    with pytest.raises(UnknownModelError, match="smollm2-135m-instruct"):
        lookup("gpt-9")


@pytest.mark.parametrize("name", ["file:/etc/passwd", DEFAULT_MODEL.source, "x" * 10_000])
def test_a_request_cannot_name_a_source(name: str) -> None:
    with pytest.raises(UnknownModelError) as refused:
        lookup(name)
    assert len(refused.value.message) < 300


def test_every_entry_is_pinned_and_readable() -> None:
    for name in names():
        spec = lookup(name)
        assert re.fullmatch("[0-9a-f]{64}", spec.sha256)
        assert parse_source(spec.source).text == spec.source
