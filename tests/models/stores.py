"""What lies in a store, seen from outside."""

from __future__ import annotations

from pathlib import Path

from outrider.models.store import ModelStore


def published(store: ModelStore) -> list[str]:
    """The digests under blobs/."""
    return sorted(path.name for path in (store.root / "blobs").rglob("*") if path.is_file())


def unfinished(store: ModelStore) -> list[Path]:
    """What lies under tmp/ and partial/."""
    return [path for name in ("tmp", "partial") for path in (store.root / name).rglob("*")]
