"""The turn engine interface: an inference server, or a library like one, that writes replies.

A step engine (`outrider.engines.base`) computes rows and decides nothing. A turn engine is given
ids and sampling and returns the reply's ids: batching, KV and sampling are its own. What it
promises (tests/engines/turn/contract.py):

- the ids of a reply's pieces, joined, are the reply: none is missing, none comes twice;
- the last piece says why the reply ended, and ends the iterator;
- closing the iterator ends the request in the engine, whose room is then free again;
- requests of different salts never share a cached prefix;
- once the engine is lost, running and new replies raise ReplicaLostError; one that the engine was
  never given says so (NOT_GIVEN), as it cannot be what the engine was lost by.

All of it is used in one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from outrider.sampling.params import SamplingParams
from outrider.session.types import FinishReason, Priority, TokenLogprobs

NOT_GIVEN: Final = "not_given"
"""Metadata key of a ReplicaLostError: the engine was gone before it was given the request."""


class Ability(StrEnum):
    """What a turn engine may or may not do with a request. Temperature, top_p, a limit of tokens
    and ids that end the reply are asked of every one."""

    TOP_K = "top_k"
    MIN_P = "min_p"
    SEED = "seed"
    """The same seed draws the same reply, as far as the engine's arithmetic allows."""
    REPETITION_PENALTY = "repetition_penalty"
    PRESENCE_PENALTY = "presence_penalty"
    FREQUENCY_PENALTY = "frequency_penalty"
    LOGIT_BIAS = "logit_bias"
    LOGPROBS = "logprobs"
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    LARK = "lark"
    SALT = "salt"
    """Its prefix cache keeps trust groups apart. An engine without it must have no such cache."""
    PRIORITY = "priority"
    """Its own queue knows priorities."""


@dataclass(frozen=True, slots=True)
class TurnEngineInfo:
    """A turn engine's properties and limits."""

    name: str
    """As in EngineConfig.engine."""
    vocabulary_size: int
    """Ids that it knows; 0: it does not say."""
    max_sessions: int
    """Replies that it is given at once."""
    max_context_tokens: int
    """Most tokens of prompt and reply together."""
    abilities: frozenset[Ability] = frozenset()
    block_tokens: int = 16
    """Tokens per block of its prefix cache, by which routers look for cached prompts."""
    num_blocks: int = 0
    """Blocks of its KV; 0: it does not say."""
    tells_prefixes: bool = False
    """Whether prefix_events() says what is cached; otherwise what it was given lately is taken for
    cached."""
    version: str = ""
    """Of the software behind it, for the log and for operators."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A reply to write, or to continue."""

    number: int
    """Unique among the requests of a replica's process."""
    ids: tuple[int, ...]
    """The prompt and what is committed of the reply: the first new id follows the last of them."""
    sampling: SamplingParams
    """As the client has it. For `max_tokens`, `seed`, `stop_ids` and `ignore_eos` the fields below
    count; `stop` is looked for by the replica."""
    max_tokens: int
    """Ids still to come."""
    end_ids: tuple[int, ...] = ()
    """All ids that end the reply, the model's own too; the engine's own end of a reply is off,
    unless a grammar needs it."""
    seed: int = 0
    """0 .. 2**64 - 1. Not the client's: another one for each place where a reply is continued, as
    an engine that was given the same one would repeat its draws."""
    salt: bytes = b""
    """The trust group."""
    priority: Priority = Priority.MEDIUM


class TurnPiece(NamedTuple):
    """What an engine has written since the piece before."""

    ids: tuple[int, ...]
    """May be empty in the last piece only. An id that ends the reply belongs to it."""
    finish: FinishReason | None = None
    """STOP or LENGTH in the last piece."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each id, if `num_logprobs` asked for them."""
    cached_tokens: int | None = None
    """Ids of the request whose KV was cached; None: not said, or said before."""


class TurnLoad(NamedTuple):
    """What an engine says of itself, whoever gave it work."""

    running: int
    waiting: int
    free_blocks: int | None = None
    """Blocks of KV that are free or can be; None: it does not say."""


class BlocksStored(NamedTuple):
    """Full blocks that can be reused from now on, each behind the one before."""

    salt: bytes
    parent: bytes
    """The engine's name of the block before the first; empty: there is none."""
    names: tuple[bytes, ...]
    """The engine's names of the blocks, which it uses again to remove them."""
    ids: tuple[int, ...]
    """block_tokens ids for each block."""


class BlocksRemoved(NamedTuple):
    """These blocks cannot be reused any more."""

    names: tuple[bytes, ...]


class BlocksCleared(NamedTuple):
    """No block can be reused any more."""


PrefixEvent: TypeAlias = BlocksStored | BlocksRemoved | BlocksCleared


class TurnEngine(Protocol):
    """One loaded model behind an inference server or library."""

    @property
    def info(self) -> TurnEngineInfo: ...

    def reply(self, request: TurnRequest) -> AsyncGenerator[TurnPiece, None]:
        """Write a reply. Closing the generator, or cancelling whoever waits for it, cancels the
        request. Raises InvalidSamplingError for what the engine refuses, OverloadedError if it has
        no room, EngineError if this request failed, and ReplicaLostError if the engine is gone."""
        ...

    async def load(self) -> TurnLoad | None:
        """Its load now; None: it does not say. Raises ReplicaLostError if the engine is gone: a
        replica asks once a second, to find out."""
        ...

    def prefix_events(self) -> AsyncIterator[PrefixEvent]:
        """Changes of its prefix cache from now on, where `tells_prefixes`; ends when it closes."""
        ...

    async def close(self) -> None:
        """End all requests and release the engine; further replies raise ReplicaLostError."""
        ...
