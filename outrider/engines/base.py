"""The engine interface: what the scheduler needs of a model, and what every engine refuses.

An engine computes rows of logits for batches of sequences over a paged KV pool whose blocks the
caller hands out. It has no policy of its own. The contract (tests/engines/seam/contract.py):

- a row is a function of the ids at positions 0..p of its sequence only, bit for bit, whatever
  else is in the call, however the ids were split over calls, and whichever blocks hold them;
- ids behind a row (drafts) never change it; KV at positions past a sequence's kept length may
  hold anything and is rewritten before it is read;
- a slice overwrites what lies behind its last token, up to the end of the block of its last scratch
  token: a block shared between sequences is never written behind its shared tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.codec.kv.layout import KvLayout
from outrider.errors import EngineError

Ids: TypeAlias = npt.NDArray[np.int32]
Logits: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SizingRule:
    """How many rows a call computes.

    Engines with kernels for certain numbers of rows round a call up to one of these. The rows in
    between cost nothing more, and a scheduler that knows them fills them with drafts. The default
    does not round.
    """

    sizes: tuple[int, ...] = ()
    """Numbers of rows that the engine is prepared for, ascending."""
    quantum: int = 1
    """Larger calls are rounded up to a multiple of this."""

    @property
    def max_prepared(self) -> int:
        """Most rows of a call that is rounded up to one of `sizes`; 0: `sizes` is empty."""
        return self.sizes[-1] if self.sizes else 0

    def padded(self, num_rows: int) -> int:
        """Rows that a call of `num_rows` computes."""
        sizes = self.sizes  # no properties and calls: ten predictions are made per engine call
        if sizes and 0 < num_rows <= sizes[-1]:
            return sizes[bisect_left(sizes, num_rows)]
        return -(-num_rows // self.quantum) * self.quantum

    def at_least(self, min_rows: int) -> SizingRule:
        """The rule for calls of no fewer than so many rows."""
        sizes = tuple(size for size in self.sizes if size >= min_rows)
        quantum = -(-min_rows // self.quantum) * self.quantum if not sizes else self.quantum
        return SizingRule(sizes, quantum)

    def rounded(self, num_rows: int) -> int:
        """The next multiple of `quantum`."""
        return -(-num_rows // self.quantum) * self.quantum


NO_SIZING = SizingRule()


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's properties and limits."""

    name: str
    vocabulary_size: int
    block_tokens: int
    """Tokens per KV block."""
    num_blocks: int
    """Blocks of the pool; ids 0 .. num_blocks - 1."""
    block_bytes: int
    """KV bytes of one block over all layers."""
    max_context_tokens: int
    min_rows: int = 1
    """Fewest tokens a slice may have; the scheduler pads with a guess (decision 0002)."""
    scratch_tokens: int = 0
    """KV slots past a slice's last token that the engine may write garbage to; the slice's
    blocks must cover them."""
    sizing: SizingRule = NO_SIZING
    """How the number of rows of a call is rounded; filling a call up to it is nearly free."""
    exact: bool = True
    """Whether the contract's bit-exactness holds in this configuration."""
    precision: str = "f32"
    """Arithmetic between the weight products, and of the KV: bf16 or f32."""
    fingerprint: bytes = b""
    """SHA-256 of the logits' bits over fixed probe tokens: engines with equal fingerprints compute
    the same. Empty: the engine's bits cannot be compared."""
    pool_reason: str = ""
    """Why the pool has this size, for the log."""
    num_candidates: int = 0
    """Columns of a row: only the likeliest ids; 0: the whole vocabulary."""
    kv_layout: KvLayout | None = None
    """How export_blocks arranges each of its blocks; None: the exported bytes cannot be packed and
    are not sent anywhere."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence announced to the engine before its first slice."""

    sequence: int
    """The caller's number, not open."""
    ids: Ids
    """[n] all its tokens so far."""
    salt: bytes = b""
    """Sequences of different salts never share KV."""
    num_candidates: int = 0
    """Candidates a row needs for this sequence's choices; 0: all the engine gives."""


class SequenceSlice(NamedTuple):
    """The tokens of one sequence that an engine call computes."""

    sequence: int
    """The caller's number of the sequence; must be open."""
    tokens: Ids
    """[n] ids whose KV is missing, at positions past .. past + n - 1; n >= min_rows."""
    past: int
    """Tokens whose KV the blocks already hold."""
    blocks: Ids
    """Physical blocks in order, covering past + n + scratch_tokens tokens."""
    num_rows: int
    """Logit rows to return, those of the last num_rows tokens; 0 for an inner prefill chunk."""


class LogitsRows(NamedTuple):
    """Candidates for the token after each position asked for."""

    logits: Logits
    """[r, c] raw scores, before any temperature or filter; log probabilities with candidates. To be
    read before the next step, which may overwrite them."""
    ids: Ids | None = None
    """[r, c] the ids the columns stand for; None: column j is id j."""


OverlappedWork: TypeAlias = Callable[[], None]
"""CPU work to do while the engine computes a batch."""


def no_work() -> None:
    """For callers that have nothing to do meanwhile."""


class Engine(Protocol):
    """One loaded model. Not thread-safe: one thread calls it."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def busy_s(self) -> float:
        """Seconds of computing so far: for each call from its start on the hardware to its end
        there, without preparation and evaluation."""
        ...

    def open(self, sequence: int, prompt: Ids, salt: bytes = b"", num_candidates: int = 0) -> None:
        """Announce a sequence; the fields of NewSequence. Raises EngineError."""
        ...

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        """Compute one batch; one LogitsRows per slice, in order. Raises EngineError.

        `overlapped_work` is called in the caller's thread while a batch that is not empty is
        computed: work that would otherwise delay the next one. An engine may leave it out for a
        batch that it refuses.
        """
        ...

    def close_sequence(self, sequence: int) -> None:
        """Forget a sequence. Unknown numbers are ignored."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Make block `target` hold what `source` holds. Raises EngineError.

        How a sequence takes over the first tokens of another's block: a shared block cannot be
        written behind them, a copy can. Engines that keep KV themselves do nothing.
        """
        ...

    def export_blocks(self, blocks: Sequence[int]) -> bytes:
        """The raw KV of these blocks, for import_blocks of an engine of the same fingerprint: any
        other one would take it for its own model's."""
        ...

    def import_blocks(self, blocks: Sequence[int], data: bytes) -> None:
        """Write exported KV into these blocks. Raises EngineError on a size mismatch."""
        ...

    def close(self) -> None:
        """Release the model; further calls raise EngineError."""
        ...


def ladder(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 6, 8, 12, 16, 24, 32, 48, ... up to max_rows."""
    return tuple(size for size in _steps(max_rows) if size <= max_rows)


def _steps(max_rows: int) -> Iterator[int]:
    size = 1
    while size <= max_rows:
        yield size
        if size >= 4:
            yield size + size // 2
        size *= 2


# What every engine refuses: one place, so that all engines fail alike.


def check_slices(
    info: EngineInfo, opened: Collection[int], slices: Sequence[SequenceSlice]
) -> None:
    """Check a call before anything is written. Raises EngineError."""
    seen: set[int] = set()
    for part in slices:
        if part.sequence not in opened:
            raise EngineError(f"sequence {part.sequence} is not open; open it before its slices")
        if part.sequence in seen:
            raise EngineError(f"sequence {part.sequence} is twice in one call; give it one slice")
        seen.add(part.sequence)
        _check_lengths(info, part)
    if slices:
        # All at once: numpy takes longer for a call than for a thousand numbers.
        check_ids(info, np.concatenate([part.tokens for part in slices]))
        check_block_ids(info, np.concatenate([part.blocks for part in slices]))


def check_opening(info: EngineInfo, opened: Collection[int], sequence: int, prompt: Ids) -> None:
    """Check an announced sequence. Raises EngineError."""
    if sequence in opened:
        raise EngineError(f"sequence {sequence} is open already; use a new number")
    check_ids(info, prompt)


def check_ids(info: EngineInfo, ids: Ids) -> None:
    """Check that every id is in the vocabulary. Raises EngineError."""
    if len(ids) and (ids.min() < 0 or ids.max() >= info.vocabulary_size):
        bad = ids[(ids < 0) | (ids >= info.vocabulary_size)][0]
        raise EngineError(f"id {bad} is outside the vocabulary of {info.vocabulary_size} ids")


def check_block_ids(info: EngineInfo, blocks: Sequence[int] | Ids) -> None:
    """Check that every block is one of the pool's. Raises EngineError."""
    table = np.asarray(blocks)
    if table.size and (table.min() < 0 or table.max() >= info.num_blocks):
        bad = table[(table < 0) | (table >= info.num_blocks)][0]
        raise EngineError(f"block {bad} is outside the pool of {info.num_blocks} blocks")


def _check_lengths(info: EngineInfo, part: SequenceSlice) -> None:
    count = len(part.tokens)
    if count < info.min_rows or count < 1:
        raise EngineError(f"a slice has {count} tokens; give it at least {max(1, info.min_rows)}")
    if not 0 <= part.num_rows <= count:
        raise EngineError(f"{part.num_rows} rows asked of {count} tokens; ask for 0..{count}")
    end = part.past + count
    if part.past < 0 or end > info.max_context_tokens:
        raise EngineError(
            f"tokens at {part.past}..{end - 1} are outside the context of "
            f"{info.max_context_tokens} tokens"
        )
    needed = end + info.scratch_tokens
    if len(part.blocks) * info.block_tokens < needed:
        raise EngineError(
            f"{len(part.blocks)} blocks of {info.block_tokens} tokens do not cover {needed} tokens"
        )
