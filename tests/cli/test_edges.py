"""`outrider edges`: keys, lists signed with them, and what they show."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.edges import DEFAULT_PORT, listed_edge
from outrider.client import protocol
from outrider.edge_list import ListedEdge, SignedEdgeList, read, read_key
from outrider.errors import ConfigError, EdgeListError
from tests.cli.invoking import invoke

DAY_S = 86_400


class Edges:
    """The command in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.list = folder / "edges.json"
        self.key_file = folder / "edges.key"
        self.key = self("key", str(self.key_file)).strip()

    def __call__(self, *arguments: str) -> str:
        """What it prints. Raises the error that ends it."""
        done = invoke(["edges", *arguments])
        if done.exit_code != 0:
            assert done.exception is not None
            raise done.exception
        return done.stdout

    def sign(self, *arguments: str) -> SignedEdgeList:
        self("sign", str(self.list), *arguments, "--key-file", str(self.key_file))
        return read(self.list.read_bytes())


@pytest.fixture
def edges(tmp_path: Path) -> Edges:
    return Edges(tmp_path)


def test_a_private_key_is_its_owners_and_never_overwritten(edges: Edges) -> None:
    assert stat.S_IMODE(edges.key_file.stat().st_mode) == 0o600
    before = edges.key_file.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        edges("key", str(edges.key_file))
    assert edges.key_file.read_bytes() == before
    assert edges("key", "--show", str(edges.key_file)).strip() == edges.key


def test_a_list_is_signed_from_arguments_and_a_file(edges: Edges, tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("# those of Asia\n\nap=edge.ap.example.net:4434?tcp=443  # soon two\n")
    made = edges.sign("us-east=edge.us.example.net", "10.0.0.7", "--edges-file", str(more))
    found = made.check([read_key(edges.key)])
    assert found.edges == (
        ListedEdge("edge.us.example.net", 4433, region="us-east"),
        ListedEdge("10.0.0.7", 4433),
        ListedEdge("edge.ap.example.net", 4434, 443, "ap"),
    )
    assert abs(found.version - time.time()) < 600
    assert found.valid_until - found.version == 90 * DAY_S
    assert stat.S_IMODE(edges.list.stat().st_mode) == 0o644


def test_a_list_is_signed_again_with_a_higher_version(edges: Edges) -> None:
    first = edges.sign("edge.us.example.net").edges
    again = edges.sign("--expires", "30d").edges
    assert again.edges == first.edges and again.version > first.version
    assert again.valid_until < first.valid_until
    assert edges.sign("other.example.net").edges.version > again.version


def test_without_edges_or_over_another_file_nothing_is_signed(edges: Edges) -> None:
    with pytest.raises(ConfigError, match="name the edges"):
        edges.sign()
    edges.list.write_text("something else")
    with pytest.raises(EdgeListError, match="no list of edges"):
        edges.sign("edge.us.example.net")
    assert edges.list.read_text() == "something else"
    with pytest.raises(EdgeListError, match="no private key"):
        edges("sign", str(edges.list.with_name("new")), "a", "--key-file", str(edges.list))
    with pytest.raises(ConfigError, match="in the past"):
        edges("sign", str(edges.list.with_name("new")), "a", "--expires", "2001-01-01")


def test_a_list_is_shown_and_checked(edges: Edges, tmp_path: Path) -> None:
    edges.sign("us-east=edge.us.example.net:4434?tcp=443", "10.0.0.7?name=Edge.example")
    head, us, other, last = edges("show", str(edges.list), "--key", edges.key).splitlines()
    assert head.split() == ["EDGE", "REGION", "TCP", "CERTIFICATE"]
    assert us.split() == ["edge.us.example.net:4434", "us-east", "443", "edge.us.example.net"]
    assert other.split() == ["10.0.0.7:4433", "-", "4433", "edge.example"]
    assert last.startswith("version ") and last.endswith(" UTC")
    stranger = edges("key", str(tmp_path / "other.key")).strip()
    both = edges("show", str(edges.list), "--key", stranger, "--key", edges.key, "--json")
    told: dict[str, Any] = json.loads(both)
    assert told["verified"] and [it["region"] for it in told["edges"]] == ["us-east", ""]
    assert not json.loads(edges("show", str(edges.list), "--json"))["verified"]
    with pytest.raises(EdgeListError, match="none of the keys"):
        edges("show", str(edges.list), "--key", stranger)
    changed = edges.list.read_bytes().replace(b"4434", b"4435")
    edges.list.write_bytes(changed)
    with pytest.raises(EdgeListError, match="none of the keys"):
        edges("show", str(edges.list), "--key", edges.key)


def test_edges_are_written_as_the_help_says() -> None:
    assert DEFAULT_PORT == protocol.DEFAULT_PORT
    assert listed_edge("eu=[2001:db8::1]:1?tcp=2&name=a.b") == ListedEdge(
        *("2001:db8::1", 1, 2, "eu", "a.b")
    )
    for wrong in (
        *("", "eu=", "a=b=c", "a:x", "a:0", "a:70000", "a?tcp=x", "a?tcp=", "a?x=1"),
        *("u@a", "a/b", "a#b", "quic://a", "[::1", "a b"),
    ):
        with pytest.raises(ConfigError):
            listed_edge(wrong)


def test_a_chat_follows_a_list_only_with_the_edge_that_it_is_of(tmp_path: Path) -> None:
    done = invoke(["chat", "hello", "--edge-list-key", "k", "--state-dir", str(tmp_path)])
    assert done.exit_code == 1 and "a mesh elsewhere" in str(done.exception)
