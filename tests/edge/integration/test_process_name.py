"""A client that comes back names the edge's process that has its chats."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.client.address import EdgeAddress
from outrider.client.dialling import dial_quic
from outrider.client.protocol import process_name
from outrider.client.tickets import SessionTickets
from outrider.models.vocabulary import Vocabulary
from tests.edge.integration.running import running


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


async def test_the_first_packet_has_the_name_and_the_handshake_completes(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running(words, tmp_path) as mesh:
        address = EdgeAddress("127.0.0.1", mesh.ports.main, ca=mesh.ca)
        connection = await dial_quic(address, 10.0, SessionTickets(), bytes([1, 2, 3, 4]))
        cid = connection._quic.original_destination_connection_id
        connection.shut()
    assert cid[:4] == bytes([1, 2, 3, 4]) and len(cid) == 8
