"""Prefixes that operators register, as token ids, and the sessions that may use them (pure).

A static prefix is pinned under a salt of its own, which no trust group has: it is longer than any
salt of a session may be. A session finds it if its tenant is one of those that the operator named.
Trust groups that share nothing else thus share it, only because the operator said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from outrider.access.api_keys import is_allowed
from outrider.codec.block_hashes import block_hashes
from outrider.engines.base import EngineInfo
from outrider.errors import ConfigError
from outrider.static_prefixes import StaticPrefixConfig, Templates, prefix_ids


@dataclass(frozen=True, slots=True)
class StaticPrefix:
    """A prefix in token ids."""

    name: str
    tenants: tuple[str, ...]
    """Whose sessions may use it; "*": everybody's."""
    ids: tuple[int, ...]

    @property
    def salt(self) -> bytes:
        """Under which it is pinned, the same in all replicas."""
        named = "\0".join(sorted(self.tenants)).encode()
        return b"static prefix " + blake2b(named).digest()

    def padded(self, block_tokens: int) -> tuple[int, ...]:
        """Ids that fill whole blocks: of the last one, sessions copy what is the prefix's."""
        missing = -len(self.ids) % block_tokens
        return (*self.ids, *self.ids[-1:] * missing)


def rendered(
    configs: Iterable[StaticPrefixConfig], model: str, templates: Templates
) -> tuple[StaticPrefix, ...]:
    """Those of `model`, through its chat template. Raises ConfigError for one that no chat can
    begin with."""
    return tuple(
        StaticPrefix(config.name, config.tenants, prefix_ids(config, templates))
        for config in configs
        if config.model in ("", model)
    )


class StaticPrefixes:
    """The static prefixes of a replica."""

    def __init__(
        self,
        prefixes: Sequence[StaticPrefix],
        info: EngineInfo,
        *,
        max_share: float,
        context_limit: int,
    ) -> None:
        """They may take `max_share` of the KV pool, as far as one session of
        `context_limit` tokens has room beside them. Raises ConfigError if they take more, and for
        an engine that keeps its KV to itself."""
        self.prefixes = tuple(prefixes)
        self.num_blocks = 0
        """Blocks of the KV pool that all of them take."""
        self._salts = {prefix.salt: frozenset(prefix.tenants) for prefix in prefixes}
        if not prefixes:
            return
        if info.kv_layout is None:
            raise ConfigError(
                f"the engine {info.name} keeps its KV to itself, so no prefix can be pinned; leave "
                "out [[inference.prefixes]]"
            )
        for prefix in prefixes:
            if len(prefix.padded(info.block_tokens)) >= context_limit:
                raise ConfigError(
                    f"prefix {prefix.name} has {len(prefix.ids)} tokens, and prompt and reply have "
                    f"room for {context_limit}; shorten it, or raise max_context_tokens"
                )
        self._check_room(info, max_share, context_limit)

    def _check_room(self, info: EngineInfo, max_share: float, context_limit: int) -> None:
        blocks = {
            name
            for prefix in self.prefixes
            for name in block_hashes(
                prefix.padded(info.block_tokens), info.block_tokens, prefix.salt
            )
        }
        session = -(-(context_limit + info.scratch_tokens + info.min_rows) // info.block_tokens)
        room = min(int(max_share * info.num_blocks), info.num_blocks - session)
        self.num_blocks = len(blocks)
        if len(blocks) > room:
            needed = len(blocks) * info.block_tokens
            raise ConfigError(
                f"the static prefixes need {len(blocks)} blocks of the KV pool ({needed} tokens, "
                f"{len(blocks) * info.block_bytes} bytes), and may have {max(0, room)} of its "
                f"{info.num_blocks}: prefix_share is {max_share:g}, and a session of "
                f"{context_limit} tokens has to fit beside them. Register fewer or shorter ones, "
                "or raise kv_bytes or prefix_share, or lower max_context_tokens"
            )

    def salts_of(self, tenant: str) -> tuple[bytes, ...]:
        """Salts of the prefixes that this tenant's sessions may use."""
        return tuple(salt for salt, tenants in self._salts.items() if is_allowed(tenant, tenants))
