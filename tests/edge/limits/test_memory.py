"""The process's memory, and what it may have."""

from __future__ import annotations

from services.edge.limits import memory


def test_more_is_held_after_more_was_made() -> None:
    before = memory.resident_bytes()
    held = b"x" * (64 << 20)
    assert memory.resident_bytes() - before > 32 << 20
    assert len(held) < memory.resident_bytes() < memory.limit_bytes()
