"""Which edges a client tries, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outrider.client.address import EdgeAddress
from outrider.client.known_edges import KnownEdges
from outrider.edge_list import EdgeList, ListedEdge, sign
from outrider.errors import EdgeListError

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
NOW = 1000.0
FIRST = EdgeAddress("first", 4433, Path("ca.pem"))
SECOND = replace(FIRST, host="second")


def listed(*hosts: str, version: int = 1, valid_until: int = 2000) -> bytes:
    edges = tuple(ListedEdge(host, 4433) for host in hosts)
    return sign(EdgeList(edges, version, valid_until), KEY).encoded()


def known(*named: EdgeAddress) -> KnownEdges:
    return KnownEdges(named or (FIRST,), [KEY.public_key()])


def hosts(edges: KnownEdges, after: EdgeAddress | None = None, now: float = NOW) -> list[str]:
    return [it.host for it in edges.in_order(now, after)]


def test_the_named_ones_come_first_and_each_edge_once() -> None:
    edges = known(FIRST, SECOND)
    assert hosts(edges) == ["first", "second"]
    assert edges.take(listed("a", "second", "b"), NOW)
    assert hosts(edges) == ["first", "second", "a", "b"]
    assert hosts(edges, after=SECOND) == ["second", "first", "a", "b"]
    a = edges.in_order(NOW)[2]
    assert hosts(edges, after=a) == ["a", "first", "second", "b"]


def test_an_edge_that_the_list_has_no_more_is_tried_no_more() -> None:
    edges = known()
    edges.take(listed("a", "b"), NOW)
    a = edges.in_order(NOW)[1]
    assert hosts(edges, after=a, now=3000.0) == ["first"], "the list has ended"
    edges.take(listed("b", version=2), NOW)
    assert hosts(edges, after=a) == ["first", "b"]


def test_the_nearest_of_the_listed_comes_first_and_those_without_an_answer_last() -> None:
    edges = known()
    edges.take(listed("a", "b", "c", "d"), NOW)
    a, b, c, d = edges.unmeasured(NOW)
    for edge, handshake_s in ((a, math.inf), (b, 0.2), (d, 0.1)):
        edges.measured(edge, handshake_s)
    assert hosts(edges) == ["first", "d", "b", "a", "c"]
    assert edges.unmeasured(NOW) == (a, c), "they are tried again"
    edges.take(listed("b", "e", version=2), NOW)
    assert [it.host for it in edges.unmeasured(NOW)] == ["e"], "what is known of the rest stays"


def test_a_listed_edge_is_verified_as_a_named_one() -> None:
    named = EdgeAddress("first", 4433, Path("ca.pem"), False, "mesh.example", 8443)
    edges = known(named)
    own = ListedEdge("b", 5, 443, "eu", "b.example")
    edges.take(sign(EdgeList((ListedEdge("a", 4), own), 1, 2000), KEY).encoded(), NOW)
    assert edges.in_order(NOW)[1:] == (
        EdgeAddress("a", 4, Path("ca.pem"), False, "mesh.example"),
        EdgeAddress("b", 5, Path("ca.pem"), False, "b.example", 443),
    )


def test_a_list_that_ends_takes_its_edges_along_and_still_refuses_older_ones() -> None:
    edges = known()
    edges.take(listed("a", version=5), NOW)
    assert hosts(edges, now=2000.0) == ["first"]
    with pytest.raises(EdgeListError):
        edges.take(listed("b", version=4, valid_until=9000), 2000.0)
    assert edges.take(listed("b", version=6, valid_until=9000), 2000.0)
    assert hosts(edges, now=2000.0) == ["first", "b"]


def test_a_refused_list_changes_nothing() -> None:
    edges = known()
    assert edges.take(listed("a", version=2), NOW)
    assert not edges.take(listed("a", version=2), NOW), "the same again is no news"
    for text in (b"", listed("b", version=1), listed("b", version=2), listed("b", version=3)[:-1]):
        with pytest.raises(EdgeListError):
            edges.take(text, NOW)
    assert hosts(edges) == ["first", "a"]


def test_a_kept_list_counts_as_known_and_an_ended_one_names_no_edge() -> None:
    edges = known()
    edges.take_kept(listed("a", version=9, valid_until=500))
    assert hosts(edges) == ["first"]
    with pytest.raises(EdgeListError):
        edges.take(listed("a", version=8), NOW)
    with pytest.raises(EdgeListError):
        KnownEdges((FIRST,), ()).take_kept(listed("a"))
