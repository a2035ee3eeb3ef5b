"""Where packets between hosts go."""

from __future__ import annotations

import pytest

from bench.regions.network import destination


@pytest.mark.parametrize(
    ("packet", "address"),
    [
        (b"\x45" + bytes(15) + bytes((10, 77, 3, 1)), bytes((10, 77, 3, 1))),
        (b"\x45" + bytes(15) + bytes((10, 77, 3, 1)) + b"payload", bytes((10, 77, 3, 1))),
        (b"\x60" + bytes(39), None),
        (b"\x45" + bytes(18), None),
        (b"", None),
    ],
)
def test_a_packet_goes_where_its_header_says(packet: bytes, address: bytes | None) -> None:
    assert destination(packet) == address
