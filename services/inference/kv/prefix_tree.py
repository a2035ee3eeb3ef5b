"""Which token prefixes have their KV in the pool: a tree over full blocks.

One edge is one block: its ids are the edge's key, so a match costs one dictionary look-up per
block. A node's KV depends on all ids from the root down, which is what makes it reusable. Trees of
different cache salts share nothing, but for static prefixes: an operator pins these under salts of
their own, and says whose sessions may use them. A tree then gets an *alias* of a pinned node: a
node of its own, with the other one's block. It takes no memory, so it goes as soon as nothing uses
it and nothing is below it. (The idea is SGLang's RadixAttention, arXiv 2312.07104, section 3, with
vLLM's full-block granularity.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from outrider.codec.block_hashes import block_hash, root_hash
from services.inference.kv.allocator import BlockAllocator
from services.inference.kv.events import BlockRecorder

Key: TypeAlias = tuple[int, ...]
_NO_BLOCK = -1


class Node:
    """One published block. `num_users` counts the sessions whose path runs through it."""

    __slots__ = (
        "block",
        "children",
        "hash",
        "is_alias",
        "is_inexact",
        "key",
        "num_users",
        "ordered",
        "parent",
        "salt",
    )

    def __init__(
        self,
        parent: Node | None,
        key: Key,
        block: int,
        salt: bytes,
        *,
        is_alias: bool = False,
        is_inexact: bool = False,
    ) -> None:
        self.is_alias = is_alias
        """Whether the block belongs to a pinned node of another salt."""
        self.is_inexact: bool = is_inexact or (parent is not None and parent.is_inexact)
        """Whether its KV, or any before it, was rounded on its way to this replica."""
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
        self._named: dict[bytes, Node] = {}
        """Nodes by hash."""
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._recorder: BlockRecorder | None = None
        self.num_nodes = 0

    @property
    def num_idle(self) -> int:
        """Blocks that evict() can free, one per call."""
        return len(self._idle)

    def record(self, recorder: BlockRecorder) -> None:
        """Report the published blocks to the recorder, and from now on every change."""
        self._recorder = recorder
        for node in self.nodes():
            if node.parent is not None:
                recorder.stored(node.parent.hash, node.hash)

    def match(self, salts: Sequence[bytes], keys: Iterator[Key]) -> tuple[list[Node], int]:
        """Along the leading keys that are published under any of the salts: the last nodes, and
        the number of keys. Adds no reference. No node if nothing is known of any salt."""
        nodes = [root for salt in salts if (root := self._roots.get(salt)) is not None]
        count = 0
        for key in keys:
            children = children_at(nodes, key)
            if not children:
                break
            nodes = children
            count += 1
        return nodes, count

    def roots(self, salts: Sequence[bytes]) -> list[Node]:
        """The root nodes of those salts that the tree knows. Adds no reference."""
        return self.match(salts, iter(()))[0]

    def closest(self, nodes: Sequence[Node], ids: Key) -> tuple[Node | None, int]:
        """The child of these whose ids begin most like `ids`, and how many are the same; None and
        0 if none begins so."""
        best: Node | None = None
        most = 0
        for node in nodes:
            # Of sorted sequences, a neighbour of the place of `ids` shares most of its beginning.
            at = bisect_left(node.ordered, ids)
            for key in node.ordered[max(0, at - 1) : at + 1]:
                num_same = _num_same(key, ids)
                if num_same > most:
                    best, most = node.children[key], num_same
        return best, most

    def touch(self, node: Node) -> None:
        """The node was read by a session that keeps no reference to it."""
        if node in self._idle:
            self._idle.move_to_end(node)

    def path_to(self, hashes: Sequence[bytes], *, takes_inexact: bool = False) -> list[Node]:
        """Nodes from the first block to the one with the first of these hashes that is published,
        and exact unless the caller `takes_inexact`; empty if none is. Adds no reference."""
        found = (self._named[name] for name in hashes if name in self._named)
        node = next((it for it in found if takes_inexact or not it.is_inexact), None)
        path: list[Node] = []
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

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

    def publish(self, node: Node, key: Key, block: int, *, is_inexact: bool = False) -> Node:
        """Add a child of `node` for a block of the caller, who is its first user."""
        return self._add(Node(node, key, block, node.salt, is_inexact=is_inexact))

    def alias(self, node: Node, pinned: Node) -> Node:
        """A new child of `node` with the key and the block of a node of another salt, whose users
        outlast it. The caller is its first user."""
        return self._add(Node(node, pinned.key, pinned.block, node.salt, is_alias=True))

    def _add(self, child: Node) -> Node:
        node, key = child.parent, child.key
        assert node is not None
        node.children[key] = self._named[child.hash] = child
        insort(node.ordered, key)
        if self._recorder is not None:
            self._recorder.stored(node.hash, child.hash)
        child.num_users = 1
        self._allocator.retain(child.block)
        if child.is_alias:
            self._allocator.retain(child.block)  # its first user's; a published block comes with it
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
            if node.num_users == 0 and not node.is_alias:
                self._idle[node] = None
            self._forget_alias(node)

    def evict(self) -> None:
        """Free the least recently used idle block. The caller checks num_idle first."""
        node, _ = self._idle.popitem(last=False)
        self._remove(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and not node.children, "an inner node was to be removed"
        del parent.children[node.key]
        del self._named[node.hash]
        del parent.ordered[bisect_left(parent.ordered, node.key)]
        if self._recorder is not None:
            self._recorder.removed(node.hash)
        self._allocator.release(node.block)
        self.num_nodes -= 1
        self._forget_empty(parent)
        self._forget_alias(parent)

    def _forget_alias(self, node: Node) -> None:
        """Remove an alias that nothing needs any more, and those above it of which that is true
        then."""
        if node.is_alias and not node.children and node.num_users == 0:
            self._remove(node)

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
        assert self._named == {node.hash: node for node in nodes}
        own = [node.block for node in nodes if not node.is_alias]
        assert len(set(own)) == len(own), "two nodes share a block"
        num_references: Counter[int] = Counter()
        for node in nodes:
            num_references[node.block] += 1 + node.num_users
        idle = {node for node in nodes if node.num_users == 0 and not node.is_alias}
        assert idle == set(self._idle)
        order = {node: place for place, node in enumerate(self._idle)}
        for node in nodes:
            assert node.is_inexact or not (node.parent and node.parent.is_inexact)
            assert self._allocator.ref_count(node.block) == num_references[node.block]
            if node.is_alias:
                assert node.num_users or node.children, "an alias was kept in vain"
                assert node.block in own, "an alias outlived its block"
            below = sum(child.num_users for child in node.children.values())
            assert node.num_users >= below, "a child has users that its parent lacks"
            if node in order:
                for child in node.children.values():
                    assert child.is_alias or order[child] < order[node]
            assert node.ordered == sorted(node.children)
        for root in self._roots.values():
            assert root.children or root.num_users, "an empty root was kept"


def children_at(nodes: Sequence[Node], key: Key) -> list[Node]:
    """The children at `key` of those nodes that have one."""
    return [child for node in nodes if (child := node.children.get(key)) is not None]


def _num_same(one: Key, other: Key) -> int:
    """Leading ids that both have."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
