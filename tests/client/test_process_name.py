"""A client that comes back names the edge's process that has its chats."""

from __future__ import annotations

import pytest

from outrider.client.protocol import process_name


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("0a0b0c0d" + 32 * "f", bytes([10, 11, 12, 13])),
        (32 * "f", b""),
        ("", b""),
        (40 * "x", b""),
    ],
)
def test_only_tokens_of_edges_with_several_processes_name_one(token: str, name: bytes) -> None:
    assert process_name(token) == name
