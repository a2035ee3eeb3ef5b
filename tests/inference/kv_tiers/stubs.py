"""A model thread that computes nothing, and what tiers bring blocks to it with."""

from __future__ import annotations

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.engines.fake import FakeEngine
from outrider.session.region import Draft
from outrider.speculation.learnt import Learnt
from services.inference.kv.pool import NamedBlock
from services.inference.kv_tiers.blocks import BlockLoader, kv_identity
from services.inference.kv_transfer import ExportedBlock, LoadBlocks
from services.inference.model_thread import ModelThread
from services.inference.scheduler.types import OpenRequest

ENGINE = FakeEngine()
INFO = ENGINE.info
BLOCK = ENGINE.export_blocks([0])
"""The KV of every block."""


class StubThread(ModelThread):
    """Has some prompts cached, and remembers what is loaded."""

    def __init__(self) -> None:
        self.cached: dict[bytes, ExportedBlock] = {}
        """By hash."""
        self.loaded: list[LoadBlocks] = []
        self.num_exports = 0
        self.has_room = True
        """For exports, and for what is loaded."""

    def cache(self, ids: tuple[int, ...], salt: bytes) -> None:
        """The full blocks of a prompt are computed."""
        parent, size = root_hash(salt), INFO.block_tokens
        for index, name in enumerate(block_hashes(ids, size, salt)):
            named = NamedBlock(name, parent, ids[index * size : (index + 1) * size], index)
            self.cached[name] = ExportedBlock(named, BLOCK)
            parent = name

    def open(self, request: OpenRequest) -> None:
        raise AssertionError("no tier opens a session here")

    def draft(self, session: int, draft: Draft) -> bool:
        return True

    def cancel(self, session: int) -> None:
        raise AssertionError("no tier ends a session here")

    def load_blocks(self, command: LoadBlocks) -> bool:
        if self.has_room:
            self.loaded.append(command)
        return self.has_room

    async def export_blocks(
        self, hashes: tuple[bytes, ...], *, takes_inexact: bool = False
    ) -> list[ExportedBlock]:
        self.num_exports += 1
        return [self.cached[it] for it in hashes if it in self.cached] if self.has_room else []

    async def keep_blocks(
        self, cache_salt: bytes, ids: tuple[int, ...], blocks: tuple[tuple[int, bytes], ...] = ()
    ) -> int | None:
        return None

    async def pin_blocks(self, hashes: tuple[bytes, ...]) -> list[NamedBlock]:
        return [self.cached[name].named for name in hashes if name in self.cached]

    async def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        return []


def loader_to(model: ModelThread | None = None, digest: bytes = b"v" * 32) -> BlockLoader:
    """To this model thread, or to one that has nothing."""
    identity = kv_identity(INFO, digest)
    assert identity is not None
    return BlockLoader(identity, model or StubThread())
