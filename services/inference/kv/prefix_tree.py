"""Which token prefixes have their KV in the pool: a tree over full blocks.

One edge is one block: its ids are the edge's key, so a match costs one dictionary look-up per
block. A node's KV depends on all ids from the root down, which is what makes it reusable. Trees of
different cache salts share nothing. (The idea is SGLang's RadixAttention, arXiv 2312.07104,
section 3, with vLLM's full-block granularity.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from outrider.codec.block_hashes import block_hash, root_hash
from services.inference.kv.allocator import BlockAllocator
from services.inference.kv.events import BlockRecorder

Key: TypeAlias = tuple[int, ...]
_NO_BLOCK = -1


class Node:
    """One published block. `num_users` counts the sessions whose path runs through it."""

    __slots__ = ("block", "children", "hash", "key", "num_users", "ordered", "parent", "salt")

    def __init__(self, parent: Node | None, key: Key, block: int, salt: bytes) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.salt = salt
        self.hash: bytes = root_hash(salt) if parent is None else block_hash(parent.hash, key)
        self.children: dict[Key, Node] = {}
        self.ordered: list[Key] = []
        """The children's keys, sorted."""
        self.num_users = 0


class PrefixTree:
    """Published blocks by prefix. The tree has one reference to each of its blocks.

    Sessions always use whole paths, and leave them leaf first. So a node falls idle after all its
    descendants, and the front of the idle queue is always a leaf: least recently used first, and
    never a block that something below it still needs.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self._roots: dict[bytes, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._recorder: BlockRecorder | None = None
        self.num_nodes = 0

    @property
    def num_idle(self) -> int:
        """Blocks that evict() can free, one per call."""
        return len(self._idle)

    def record(self, recorder: BlockRecorder) -> None:
        """Tell the recorder what is published, and from now on what comes and goes."""
        self._recorder = recorder
        for node in self.nodes():
            if node.parent is not None:
                recorder.stored(node.parent.hash, node.hash)

    def match(self, salt: bytes, keys: Iterator[Key]) -> tuple[Node | None, int]:
        """The last node along the leading keys that are published, and their number. Adds no
        reference. None if nothing is known of the salt."""
        node = self._roots.get(salt)
        count = 0
        for key in keys:
            child = node.children.get(key) if node is not None else None
            if child is None:
                break
            node = child
            count += 1
        return node, count

    def closest(self, node: Node, ids: Key) -> tuple[Node, int]:
        """The child whose ids begin most like `ids`, and how many are the same; `node` itself
        and 0 if none begins so."""
        # Of sorted sequences, a neighbour of the place of `ids` shares the longest prefix with it.
        at = bisect_left(node.ordered, ids)
        best, most = node, 0
        for key in node.ordered[max(0, at - 1) : at + 1]:
            num_same = _num_same(key, ids)
            if num_same > most:
                best, most = node.children[key], num_same
        return best, most

    def touch(self, node: Node) -> None:
        """The node was read by a session that keeps no reference to it."""
        if node in self._idle:
            self._idle.move_to_end(node)

    def enter(self, salt: bytes) -> Node:
        """The root of a salt, with the caller as a user."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, (), _NO_BLOCK, salt)
        root.num_users += 1
        return root

    def descend(self, node: Node, key: Key) -> Node | None:
        """The child at `key`, with the caller as a user; None if it is not published."""
        child = node.children.get(key)
        if child is not None:
            self._idle.pop(child, None)
            child.num_users += 1
            self._allocator.retain(child.block)
        return child

    def publish(self, node: Node, key: Key, block: int) -> Node:
        """A new child of `node` for a block of the caller, who is its first user."""
        child = Node(node, key, block, node.salt)
        node.children[key] = child
        insort(node.ordered, key)
        if self._recorder is not None:
            self._recorder.stored(node.hash, child.hash)
        child.num_users = 1
        self._allocator.retain(block)
        self.num_nodes += 1
        return child

    def leave(self, path: Sequence[Node]) -> None:
        """The caller stops using this path, given from the root down."""
        for node in reversed(path):
            node.num_users -= 1
            if node.parent is None:
                self._forget_empty(node)
                continue
            self._allocator.release(node.block)
            if node.num_users == 0:
                self._idle[node] = None

    def evict(self) -> None:
        """Free the least recently used idle block. The caller checks num_idle first."""
        node, _ = self._idle.popitem(last=False)
        parent = node.parent
        assert parent is not None and not node.children, "an idle inner node was to be evicted"
        del parent.children[node.key]
        del parent.ordered[bisect_left(parent.ordered, node.key)]
        if self._recorder is not None:
            self._recorder.removed(node.hash)
        self._allocator.release(node.block)
        self.num_nodes -= 1
        self._forget_empty(parent)

    def _forget_empty(self, node: Node) -> None:
        if node.parent is None and not node.children and node.num_users == 0:
            del self._roots[node.salt]

    def nodes(self) -> Iterator[Node]:
        """Every node with a block, parents before their children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def check_invariants(self) -> None:
        """Raises AssertionError if use counts, the idle queue or the blocks disagree."""
        nodes = list(self.nodes())
        assert len(nodes) == self.num_nodes
        assert len({node.block for node in nodes}) == len(nodes), "two nodes share a block"
        assert {node for node in nodes if node.num_users == 0} == set(self._idle)
        order = {node: place for place, node in enumerate(self._idle)}
        for node in nodes:
            assert self._allocator.ref_count(node.block) == 1 + node.num_users
            below = sum(child.num_users for child in node.children.values())
            assert node.num_users >= below, "a child has users that its parent lacks"
            if node in order:
                assert all(order[child] < order[node] for child in node.children.values())
            assert node.ordered == sorted(node.children)
        for root in self._roots.values():
            assert root.children or root.num_users, "an empty root was kept"


def _num_same(one: Key, other: Key) -> int:
    """Leading ids that both have."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
