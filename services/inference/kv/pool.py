"""The paged KV pool: which physical blocks hold which sequence's tokens.

A sequence is one stay of a session in the pool, numbered anew after a preemption. Its table is a
shared prefix (blocks of the prefix tree: full, verified, never written again) followed by private
blocks. Only verified tokens whose KV is computed are ever published.

Blocks that are loaded from elsewhere wait beside the table, each with its place in it, until the
tokens before them are computed: then they are published and count like any other.

Of a published block that agrees with a sequence's ids in its first tokens only, the sequence gets a
private copy: it writes behind these tokens, and the engine may overwrite all that follows them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from outrider.engines.base import Ids
from services.inference.kv.allocator import BlockAllocator
from services.inference.kv.events import BlockEvent, BlockRecorder
from services.inference.kv.prefix_tree import Key, Node, PrefixTree, children_at


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The engine is to copy block `source` to `target`, which belongs to `sequence`."""

    sequence: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class NamedBlock:
    """A published block: its hash, its parent's hash and its ids."""

    name: bytes
    """Its hash (outrider.codec.block_hashes)."""
    parent: bytes
    """Hash of the block before this one, or of the root (outrider.codec.block_hashes)."""
    ids: tuple[int, ...]
    block: int


class LoadedBlock(NamedTuple):
    """A block whose KV came from elsewhere, until the tokens before it are computed."""

    block: int
    tier: str
    """The KV tier that brought it."""
    is_inexact: bool
    """Whether it was rounded on its way."""


@dataclass(slots=True)
class _Table:
    path: list[Node]
    """Root, then one node per shared block."""
    pinned: list[Node] = field(default_factory=list)
    """Nodes of the static prefixes that the sequence may use, for the same ids as the path's last
    node."""
    aliases: list[int] = field(default_factory=list)
    """Places of aliases in the path: their blocks are pinned."""
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """The shared blocks, then the private ones."""
    copied: Ids | None = None
    """`blocks` as it was handed out; None once it has changed."""
    loaded: dict[int, LoadedBlock] = field(default_factory=dict)
    """Loaded blocks that wait, by their index in the table; all behind the shared ones."""
    has_inexact_copy: bool = False
    """Whether a private block began as a copy of an inexact one: then what follows is inexact."""

    @property
    def num_shared(self) -> int:
        return len(self.path) - 1

    def follow(self, node: Node) -> None:
        """One more node of the path."""
        if node.is_alias:
            self.aliases.append(len(self.path))
        self.path.append(node)
        if self.pinned:
            self.pinned = children_at(self.pinned, node.key)

    def append(self, block: int) -> None:
        """One more private block, or a shared one behind the shared ones."""
        self.blocks.append(block)
        self.copied = None

    def pop(self) -> int:
        """Take the last block away."""
        self.copied = None
        return self.blocks.pop()

    def replace(self, index: int, block: int) -> int:
        """Put a block in the place of another, which is returned."""
        replaced, self.blocks[index] = self.blocks[index], block
        self.copied = None
        return replaced


def _fewer_users(node: Node) -> int:
    return -node.num_users


def _num_idle(node: Node, depth: int) -> int:
    """Nodes without users on the path to a node that has so many."""
    count = 0
    current: Node | None = node
    while count < depth and current is not None and not current.num_users:
        count, current = count + 1, current.parent
    return count


class KvPool:
    """Block tables of sequences over one pool. It never waits: if there is no room, it refuses."""

    def __init__(
        self, num_blocks: int, block_tokens: int, *, min_rows: int = 1, scratch_tokens: int = 0
    ) -> None:
        """`min_rows` tokens of a prompt are always left to compute, however much is cached;
        every table has room for `scratch_tokens` tokens more than asked."""
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._min_rows = max(1, min_rows)
        self._scratch_tokens = scratch_tokens
        self._allocator = BlockAllocator(num_blocks)
        self._tree = PrefixTree(self._allocator)
        self._tables: dict[int, _Table] = {}
        self._copies: list[BlockCopy] = []
        self._recorder: BlockRecorder | None = None
        self.loaded_tokens: Counter[str] = Counter()
        """Tokens of loaded blocks that came to be used, by the KV tier that brought them."""

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: free ones, and cached ones that no sequence uses."""
        return self._allocator.num_free + self._tree.num_idle

    @property
    def num_cached(self) -> int:
        """Blocks of the prefix tree."""
        return self._tree.num_nodes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of a table that covers num_tokens and the scratch behind them."""
        return -(-(num_tokens + self._scratch_tokens) // self.block_tokens)

    def match(self, ids: Sequence[int], salt: bytes, static_salts: Sequence[bytes] = ()) -> int:
        """Leading tokens of `ids` that open() would find cached now, memory permitting."""
        nodes, num_shared = self._tree.match((salt, *static_salts), self._keys(ids, 0))
        num_same = self._tree.closest(nodes, self._rest(ids, num_shared))[1]
        return num_shared * self.block_tokens + num_same

    def num_used(self, ids: Sequence[int], salt: bytes, static_salts: Sequence[bytes] = ()) -> int:
        """Leading full blocks of `ids` that sequences have now: one more would share them. Other
        cached ones count as free until then."""
        nodes, num_shared = self._tree.match((salt, *static_salts), self._keys(ids, 0))
        return max((num_shared - _num_idle(node, num_shared) for node in nodes), default=0)

    def open(
        self, sequence: int, ids: Sequence[int], salt: bytes, static_salts: Sequence[bytes] = ()
    ) -> int:
        """A table for a sequence that will compute `ids`; returns how many are cached already, for
        this salt or as static prefixes: what is held under `static_salts`, and never released."""
        if sequence in self._tables:
            raise RuntimeError(f"sequence {sequence} already has a KV table")
        pinned = self._tree.roots(static_salts) if static_salts else []
        self._tables[sequence] = _Table([self._tree.enter(salt)], pinned)
        return self.reuse(sequence, ids, 0)

    def reuse(self, sequence: int, ids: Sequence[int], num_computed: int) -> int:
        """Take over what others published of `ids` meanwhile; returns the tokens whose KV the
        sequence has now, of which it had `num_computed`.

        Private blocks that hold the same tokens are freed. Tokens of a block that is copied count:
        their KV is there once the engine has made the copies of take_copies().
        """
        table = self._tables[sequence]
        for key in self._keys(ids, table.num_shared):
            if not self._share(table, key) and not self._publish_loaded(table, key):
                break
        num_computed = max(num_computed, table.num_shared * self.block_tokens)
        return self._copy_beginning(sequence, ids, num_computed)

    def add_loaded(
        self, sequence: int, index: int, ids: Sequence[int], tier: str, *, is_inexact: bool = False
    ) -> int | None:
        """A physical block for the KV of block `index` of `ids`, loaded from a KV tier, to be
        written before the next engine call; None where it is of no use (that block is computed,
        published or loaded already, or is not one that can be reused), where no block is free, and
        while copies wait to be made: the block might be the source of one. `is_inexact`: it was
        rounded on its way, so it is never held for a reader of exact KV."""
        if self._copies:
            return None
        table = self._tables[sequence]
        reusable = (len(ids) - self._min_rows) // self.block_tokens
        if not table.num_shared <= index < reusable or index in table.loaded or not self.num_free:
            return None
        block = self._take_block()
        table.loaded[index] = LoadedBlock(block, tier, is_inexact)
        return block

    def drop_loaded(self, sequence: int, index: int) -> None:
        """Free a block of add_loaded() that was not written."""
        self._drop_loaded(self._tables[sequence], index)

    def next_loaded(self, sequence: int, num_computed: int) -> int | None:
        """The first token, behind the first `num_computed`, whose KV waits to be used: computing it
        would be in vain. None where none does."""
        loaded = self._tables[sequence].loaded
        if not loaded:
            return None
        begins = [index * self.block_tokens for index in loaded]
        return min((begin for begin in begins if begin > num_computed), default=None)

    def is_inexact(self, sequence: int) -> bool:
        """Whether what the sequence computes next depends on KV that was rounded on its way
        here."""
        table = self._tables[sequence]
        return table.has_inexact_copy or table.path[-1].is_inexact

    def hold(
        self, sequence: int, hashes: Sequence[bytes], *, takes_inexact: bool = False
    ) -> list[NamedBlock]:
        """For a reader, the prefix that ends with the first of these hashes that is published, and
        exact unless it `takes_inexact`: its blocks stay as they are until release(). Returns those
        of them that are named, in the order of the names. Empty, and nothing is held, if there is
        no such prefix. `sequence` is a number of its own, and computes nothing."""
        if sequence in self._tables:
            raise RuntimeError(f"sequence {sequence} already has a KV table")
        path = self._tree.path_to(hashes, takes_inexact=takes_inexact)
        if not path:
            return []
        table = self._tables[sequence] = _Table([self._tree.enter(path[0].salt)])
        for node in path:
            self._share(table, node.key)
        named = {
            node.hash: NamedBlock(node.hash, parent.hash, node.key, node.block)
            for parent, node in zip(table.path, path, strict=False)
        }
        return [named[name] for name in hashes if name in named]

    def follow(self, sequence: int, ids: Sequence[int], salt: bytes) -> int:
        """A table for blocks that are kept ahead of any session: of `ids`, which it never computes,
        it has what is published under this salt. Returns how many leading blocks that are."""
        if sequence in self._tables:
            raise RuntimeError(f"sequence {sequence} already has a KV table")
        self._tables[sequence] = _Table([self._tree.enter(salt)])
        return self.publish_kept(sequence, ids)

    def publish_kept(self, sequence: int, ids: Sequence[int]) -> int:
        """Publish the blocks of add_loaded() that have been written and follow on what is published
        already; returns how many leading blocks of `ids` are published then."""
        table = self._tables[sequence]
        for key in self._keys(ids, table.num_shared):
            if not self._share(table, key):
                kept = table.loaded.pop(table.num_shared, None)
                if kept is None:
                    break
                self._publish(table, key, kept)
        return table.num_shared

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies that open() and reuse() have counted on since the last take.

        The engine has to make them, in this order, before anything is written to any block: a
        source is not referenced, and may be allocated to another sequence in the same engine call.
        """
        copies, self._copies = tuple(self._copies), []
        return copies

    def record(self) -> None:
        """Record changes of the prefix cache for take_events() from now on. The blocks that are
        already published come first."""
        self._recorder = BlockRecorder()
        self._tree.record(self._recorder)

    def take_events(self) -> tuple[BlockEvent, ...]:
        """Changes of the prefix cache since the last call; empty unless recorded."""
        return self._recorder.take() if self._recorder is not None else ()

    def num_missing(self, sequence: int, num_tokens: int) -> int:
        """Blocks that grow() would have to take."""
        return max(0, self.blocks_for(num_tokens) - len(self._tables[sequence].blocks))

    def num_owed(self, sequence: int, num_tokens: int) -> int:
        """Blocks that the sequence will still take until num_tokens are covered: without those that
        were loaded for it and wait."""
        return max(0, self.num_missing(sequence, num_tokens) - len(self._tables[sequence].loaded))

    def num_releasable(self, sequences: Sequence[int]) -> int:
        """At most so many blocks come free once all of these are released. What others use too
        does not, nor what is pinned; what only some of these share is counted for each."""
        count, most_users = 0, len(sequences)
        for sequence in sequences:
            table = self._tables[sequence]
            # Down a path there are ever fewer users: those with more than there are here come
            # first. bisect_left wants rising numbers.
            num_kept = bisect_left(table.path, -most_users, lo=1, key=_fewer_users) - 1
            num_pinned = len(table.aliases) - bisect_right(table.aliases, num_kept)
            count += len(table.blocks) - num_kept - num_pinned + len(table.loaded)
        return count

    def grow(self, sequence: int, num_tokens: int) -> bool:
        """Make the table cover num_tokens and the scratch, evicting idle cached blocks, least
        recently used first. False, with nothing changed, if fewer than num_missing() are free."""
        table = self._tables[sequence]
        if num_tokens + self._scratch_tokens <= len(table.blocks) * self.block_tokens:
            return True
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            table.append(self._take_block())
        return True

    def blocks(self, sequence: int) -> Ids:
        """The sequence's table as it is now, [n] physical blocks in order; not to be written to."""
        table = self._tables[sequence]
        if table.copied is None:
            table.copied = np.array(table.blocks, dtype=np.int32)
        return table.copied

    def commit(self, sequence: int, ids: Sequence[int], num_tokens: int) -> None:
        """Publish the full blocks among the first num_tokens of `ids`: those tokens are verified
        and their KV is computed. A block that another one published first replaces ours."""
        table = self._tables[sequence]
        if num_tokens < len(table.path) * self.block_tokens:
            return  # as after most calls
        for index in range(table.num_shared, num_tokens // self.block_tokens):
            key = self._key(ids, index)
            if not self._share(table, key):
                node = self._tree.publish(
                    table.path[-1], key, table.blocks[index], is_inexact=table.has_inexact_copy
                )
                table.follow(node)
                self._drop_loaded(table, index)

    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Free the private blocks behind num_tokens and the scratch."""
        table = self._tables[sequence]
        if (len(table.blocks) - 1) * self.block_tokens < num_tokens + self._scratch_tokens:
            return  # the last one is needed, as after most calls
        keep = max(self.blocks_for(num_tokens), table.num_shared)
        while len(table.blocks) > keep:
            self._allocator.release(table.pop())

    def release(self, sequence: int) -> None:
        """Forget the sequence. What it published stays cached until its room is needed."""
        table = self._tables.pop(sequence)
        self._copies = [copy for copy in self._copies if copy.sequence != sequence]
        for block in reversed(table.blocks[table.num_shared :]):
            self._allocator.release(block)
        for loaded in table.loaded.values():
            self._allocator.release(loaded.block)
        self._tree.leave(table.path)

    def _take_block(self) -> int:
        """A free block, evicting an idle one if need be. The caller checks num_free first."""
        if self._allocator.num_free == 0:
            self._tree.evict()
        return self._allocator.allocate()

    def _copy_beginning(self, sequence: int, ids: Sequence[int], num_computed: int) -> int:
        """Copy the published block that begins most like the sequence's first private one, if that
        covers more tokens than are computed; returns the tokens that are computed then."""
        table = self._tables[sequence]
        begin = table.num_shared * self.block_tokens
        rest = self._rest(ids, table.num_shared)
        node, num_same = self._tree.closest((table.path[-1], *table.pinned), rest)
        if node is None or begin + num_same <= num_computed:
            return num_computed
        self._tree.touch(node)
        if len(table.blocks) == table.num_shared:
            if self.num_free == 0:
                return num_computed
            table.append(self._take_block())
        target = table.blocks[table.num_shared]
        table.has_inexact_copy = table.has_inexact_copy or node.is_inexact
        # Equal if no other block was idle: then the source was evicted and given to us.
        if target != node.block:
            self._copies.append(BlockCopy(sequence, node.block, target))
        return begin + num_same

    def _share(self, table: _Table, key: Key) -> bool:
        node = self._tree.descend(table.path[-1], key)
        if node is None and (pinned := children_at(table.pinned, key)):
            node = self._tree.alias(table.path[-1], pinned[0])
        if node is None:
            return False
        index = table.num_shared
        table.follow(node)
        self._put(table, index, node.block)
        return True

    def _publish_loaded(self, table: _Table, key: Key) -> bool:
        """Publish the table's next loaded block, if there is one: all tokens before it are
        there."""
        index = table.num_shared
        loaded = table.loaded.pop(index, None)
        if loaded is None:
            return False
        self.loaded_tokens[loaded.tier] += self.block_tokens
        self._publish(table, key, loaded)
        return True

    def _publish(self, table: _Table, key: Key, loaded: LoadedBlock) -> None:
        """Publish a loaded block as the table's next one."""
        index = table.num_shared
        node = self._tree.publish(table.path[-1], key, loaded.block, is_inexact=loaded.is_inexact)
        table.follow(node)
        self._put(table, index, loaded.block)

    def _put(self, table: _Table, index: int, block: int) -> None:
        """Put a published block into the table, and free the block that was in its place."""
        if index < len(table.blocks):
            freed = table.replace(index, block)
            self._copies = [copy for copy in self._copies if copy.target != freed]
            self._allocator.release(freed)
        else:
            table.append(block)
        self._drop_loaded(table, index)

    def _drop_loaded(self, table: _Table, index: int) -> None:
        """Free a loaded block that waits at `index`, if one does: it was not written, or came too
        late, when that one was computed or published by another sequence."""
        late = table.loaded.pop(index, None)
        if late is not None:
            self._allocator.release(late.block)

    def _key(self, ids: Sequence[int], index: int) -> Key:
        return tuple(ids[index * self.block_tokens : (index + 1) * self.block_tokens])

    def _rest(self, ids: Sequence[int], index: int) -> Key:
        """The reusable ids of block `index`; fewer than a block's at the end of the prompt."""
        begin = index * self.block_tokens
        end = min(begin + self.block_tokens, len(ids) - self._min_rows)
        return tuple(ids[begin : max(begin, end)])

    def _keys(self, ids: Sequence[int], first: int) -> Iterator[Key]:
        """Keys of the reusable full blocks of `ids` from block `first` on."""
        reusable = (len(ids) - self._min_rows) // self.block_tokens
        return (self._key(ids, index) for index in range(first, reusable))

    def check_invariants(self) -> None:
        """Raise AssertionError on a leak, a block owned twice, or an invalid path."""
        self._allocator.check_invariants()
        self._tree.check_invariants()
        published = {node.block for node in self._tree.nodes()}
        private: list[int] = []
        for table in self._tables.values():
            shared = table.blocks[: table.num_shared].tolist()
            assert shared == [node.block for node in table.path[1:]]
            assert all(b.parent is a for a, b in zip(table.path, table.path[1:], strict=False))
            assert table.aliases == [n for n, node in enumerate(table.path) if node.is_alias]
            private.extend(table.blocks[table.num_shared :])
            private.extend(loaded.block for loaded in table.loaded.values())
            assert all(index >= table.num_shared for index in table.loaded)
        assert len(set(private)) == len(private), "a private block is in two tables"
        assert published.isdisjoint(private), "a published block is private to a sequence"
        assert all(self._allocator.ref_count(block) == 1 for block in private)
        for copy in self._copies:
            table = self._tables[copy.sequence]
            assert copy.target in table.blocks[table.num_shared :], "a copy into a shared block"
        assert self._allocator.num_free + len(published) + len(private) == self.num_blocks
