"""How much memory a replica of a model, and what drafts for it, take on this machine, asked before
they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from outrider.engines.base import ladder
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.draft_file import trained_size
from outrider.engines.draft_loading import DRAFT_WEIGHT_BITS, SHIPPED, draft_path, shipped_draft
from outrider.engines.footprint import Footprint, footprint
from outrider.engines.free_memory import FreeMemory
from outrider.engines.kv_budget import FLOOR_BYTES
from outrider.engines.model_size import ModelSize, read_size, size_of
from outrider.engines.openvino.fixed_sizes import choose_sizes
from outrider.errors import OutriderError
from outrider.models.catalog import lookup
from outrider.models.definitions import NO_DRAFT, ModelSpec
from outrider.models.store import ModelStore

SERVICES_BYTES: Final = 1 << 29
"""Memory of a mesh's edge, router and tokenizers."""
UNKNOWN_DRAFTER_BYTES: Final = 1 << 29
"""Memory assumed for a drafter whose draft cannot be read yet."""
_DRAFTER_KV_BYTES: Final = 64 << 20
"""Memory of a drafter's KV pool: the default of `edge.drafter.kv_bytes`."""
_BLOCK_TOKENS: Final = 32


def drafter_bytes(target: ModelSpec, choice: str, store: ModelStore) -> int:
    """Memory of the edge's process that drafts for a model. `choice` is a GGUF file, a model's
    name, "none", or "" for the shipped draft. 0 if no such process runs."""
    if choice == NO_DRAFT or (choice == SHIPPED and shipped_draft(target) is None):
        return 0
    try:
        drafter = _drafter_footprint(target, choice, store)
    except (OutriderError, OSError):
        return UNKNOWN_DRAFTER_BYTES  # the drafter says what is wrong, and chats do without it
    return drafter.needed_bytes


def _drafter_footprint(target: ModelSpec, choice: str, store: ModelStore) -> Footprint:
    path = draft_path(choice, target)
    if path is None:
        spec = lookup(choice)
        size, bits = size_of(spec, store), spec.engine.weight_bits
    elif trained := trained_size(path):
        return footprint(trained.weights_bytes, trained.num_scored, _DRAFTER_KV_BYTES)
    else:
        size, bits = read_size(path), None
    weights_bytes = size.weights_bytes_of(DRAFT_WEIGHT_BITS if bits is None else bits)
    return footprint(weights_bytes, size.vocabulary_size, _DRAFTER_KV_BYTES)


def replica_footprint(
    size: ModelSize, settings: Mapping[str, object], free: FreeMemory | None = None
) -> Footprint:
    """Footprint of one replica with these settings of the inference service: what it needs, and if
    `free` is known also the models for few rows that it would make. Values of a wrong type count as
    unset here; the service refuses them."""

    def number(key: str, default: int = 0) -> int:
        value = settings.get(key)
        return value if isinstance(value, int) else default

    weights_bytes = size.weights_bytes_of(number("weight_bits"))
    least = footprint(
        weights_bytes,
        size.vocabulary_size,
        _pool_bytes(size, number, cast(Precision, settings.get("precision", "auto"))),
    )
    if free is None:
        return least
    left = max(0, free.num_bytes - least.needed_bytes)
    sizes = ladder(number("max_fixed_rows", EngineConfig().max_fixed_rows))
    chosen = choose_sizes(sizes, weights_bytes, left, 0, number("max_fixed_bytes"))
    return footprint(weights_bytes, size.vocabulary_size, least.kv_bytes, num_fixed=len(chosen))


def _pool_bytes(size: ModelSize, number: Callable[[str], int], precision: Precision) -> int:
    """Bytes of the KV pool as configured; without settings the smallest pool."""
    if blocks := number("num_blocks"):
        return blocks * _BLOCK_TOKENS * size.kv_token_bytes(precision)
    if kv_bytes := number("kv_bytes"):
        return kv_bytes
    # Room for one sequence, if a length is promised.
    return max(FLOOR_BYTES, number("max_context_tokens") * size.kv_token_bytes(precision))
