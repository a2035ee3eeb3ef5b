"""The prefix tree: matching, sharing, and what is evicted first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.kv.allocator import BlockAllocator
from services.inference.kv.prefix_tree import Key, Node, PrefixTree


@pytest.fixture
def allocator() -> BlockAllocator:
    return BlockAllocator(8)


@pytest.fixture
def tree(allocator: BlockAllocator) -> PrefixTree:
    return PrefixTree(allocator)


def publish(
    tree: PrefixTree, allocator: BlockAllocator, *keys: Key, salt: bytes = b""
) -> list[Node]:
    """A path of these keys, with one user, of shared and new nodes."""
    path = [tree.enter(salt)]
    for key in keys:
        node = tree.descend(path[-1], key)
        if node is None:
            block = allocator.allocate()
            node = tree.publish(path[-1], key, block)
        path.append(node)
    for node in path[1:]:
        while allocator.ref_count(node.block) > 1 + node.num_users:
            allocator.release(node.block)
    tree.check_invariants()
    return path


def matched(tree: PrefixTree, *keys: Key, salt: bytes = b"") -> int:
    return tree.match((salt,), iter(keys))[1]


def test_evicts_leaves_least_recently_used_first(
    tree: PrefixTree, allocator: BlockAllocator
) -> None:
    tree.leave(publish(tree, allocator, (1,), (2,)))
    tree.leave(publish(tree, allocator, (7,)))
    tree.leave(publish(tree, allocator, (1,), (3,)))
    order: list[tuple[int, ...]] = []
    while tree.num_idle:
        before = {node.key for node in tree.nodes()}
        tree.evict()
        tree.check_invariants()
        order.extend(before - {node.key for node in tree.nodes()})
    assert order == [(2,), (7,), (3,), (1,)]
    assert allocator.num_free == 8


def test_an_empty_root_is_forgotten(tree: PrefixTree, allocator: BlockAllocator) -> None:
    for number in range(100):
        tree.leave([tree.enter(number.to_bytes(2))])
    tree.leave(publish(tree, allocator, (1,), salt=b"x"))
    tree.evict()
    tree.check_invariants()
    assert matched(tree, (1,), salt=b"x") == 0


@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 4), unique=True, max_size=20),
    st.lists(st.integers(0, 2), max_size=4),
)
def test_finds_whoever_begins_most_alike(keys: list[Key], wanted: list[int]) -> None:
    allocator = BlockAllocator(20)
    tree = PrefixTree(allocator)
    paths = [publish(tree, allocator, key) for key in keys]
    root = paths[0][0] if paths else tree.enter(b"")
    node, num_same = tree.closest([root], tuple(wanted))
    same = [next((n for n, id_ in enumerate(wanted) if key[n] != id_), len(wanted)) for key in keys]
    assert num_same == max(same, default=0)
    assert (node is None) == (num_same == 0)
    assert node is None or node.key[:num_same] == tuple(wanted[:num_same])
    for path in paths:
        tree.leave(path)
    for _ in keys:
        tree.evict()
    tree.check_invariants()


def test_what_was_of_use_is_evicted_later(tree: PrefixTree, allocator: BlockAllocator) -> None:
    for key in ((1,), (2,), (3,)):
        tree.leave(publish(tree, allocator, key))
    root = tree.enter(b"")
    first = tree.closest([root], (1,))[0]
    assert first is not None
    tree.touch(first)
    tree.evict()
    assert [matched(tree, key) for key in ((1,), (2,), (3,))] == [1, 0, 1]


def test_salts_share_nothing(tree: PrefixTree, allocator: BlockAllocator) -> None:
    ours = publish(tree, allocator, (1, 2), salt=b"a")
    assert matched(tree, (1, 2), salt=b"a") == 1
    assert matched(tree, (1, 2), salt=b"b") == 0
    theirs = publish(tree, allocator, (1, 2), salt=b"b")
    assert ours[-1].block != theirs[-1].block
