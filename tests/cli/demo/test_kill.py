"""What is said of two texts that are not the same."""

from __future__ import annotations

import pytest

from outrider.cli.demo.kill import _first_difference


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        ("The sky", "The sea", "from character 5 on: 'ky', the reference 'ea'"),
        ("The", "The sea", "from character 3 on: '', the reference ' sea'"),
        ("The sea", "The", "from character 3 on: ' sea', the reference ''"),
    ],
)
def test_it_says_where_two_texts_part(text: str, expected: str, told: str) -> None:
    assert _first_difference(text, expected) == told
