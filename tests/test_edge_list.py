"""The signed list of edges: one form, one signature, never back to an older one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.edge_list import (
    MAX_BYTES,
    MAX_EDGES,
    EdgeList,
    ListedEdge,
    SignedEdgeList,
    accepted,
    key_text,
    private_pem,
    read,
    read_key,
    read_private,
    sign,
)
from outrider.errors import EdgeListError

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
KEYS = [KEY.public_key()]
NOW = 1_800_000_000.0
US = ListedEdge("edge.us.example.net", 4433, region="us-east")
EU = ListedEdge("192.0.2.7", 4434, 443, "eu-west", "edge.eu.example.net")
EDGES = EdgeList((US, EU), 7, int(NOW) + 100)
TEXT = sign(EDGES, KEY).encoded()

labels = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True)
hosts = st.one_of(
    st.lists(labels, min_size=1, max_size=4).map(".".join),
    st.ip_addresses().map(str),
)
ports = st.integers(1, 65_535)
regions = st.from_regex(r"([A-Za-z0-9][A-Za-z0-9._-]{0,20})?", fullmatch=True)
edges = st.builds(
    ListedEdge, hosts, ports, st.none() | ports, regions, st.just("") | hosts.filter(bool)
)
lists = st.builds(
    EdgeList,
    st.lists(edges, min_size=1, max_size=8, unique_by=lambda it: (it.host, it.port)).map(tuple),
    st.integers(1, (1 << 53) - 1),
    st.integers(1, (1 << 53) - 1),
)


@given(lists)
def test_a_list_comes_back_as_it_was_signed(made: EdgeList) -> None:
    text = sign(made, KEY).encoded()
    assert len(text) <= MAX_BYTES and text.isascii()
    assert read(text).check([OTHER.public_key(), KEY.public_key()]) == made
    assert read(text).encoded() == text


@settings(max_examples=300)
@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(at: int, flip: int) -> None:
    changed = bytearray(TEXT)
    changed[at] ^= flip
    with pytest.raises(EdgeListError):
        accepted(bytes(changed), KEYS, NOW)


@given(st.integers(0, len(TEXT) - 1), st.binary(max_size=8))
def test_what_is_cut_off_or_inserted_is_refused(at: int, more: bytes) -> None:
    for text in (TEXT[:at], TEXT + b"\n", TEXT[:at] + more + TEXT[at:]):
        if text != TEXT:
            with pytest.raises(EdgeListError):
                accepted(text, KEYS, NOW)


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_anything_else_is_refused_by_our_own_error(text: bytes) -> None:
    with pytest.raises(EdgeListError):
        read(text)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"version": True},
        {"version": 7.0},
        {"version": 0},
        {"valid_until": 1 << 53},
        {"valid_until": None},
        {"edges": []},
        {"edges": {}},
        {"edges": [1]},
        {"edges": [{"host": "a"}]},
        {"edges": [{"host": "a", "port": 0}]},
        {"edges": [{"host": "a", "port": True}]},
        {"edges": [{"host": "a", "port": 1, "tcp_port": None}]},
        {"edges": [{"host": "a", "port": 1, "tcp_port": "1"}]},
        {"edges": [{"host": "a", "port": 1, "region": ""}]},
        {"edges": [{"host": "a", "port": 1, "region": 5}]},
        {"edges": [{"host": "a", "port": 1, "server_name": "-"}]},
        {"edges": [{"host": "a", "port": 1, "weight": 1}]},
        {"edges": [{"host": "a", "port": 1}] * 2},
        {"edges": [{"host": "a", "port": at} for at in range(1, MAX_EDGES + 2)]},
        {"signature": "?"},
        {"signature": 5},
        {"signature": None},
    ],
)
def test_what_is_no_list_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(TEXT) | change
    with pytest.raises(EdgeListError):
        read(json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n")


@pytest.mark.parametrize(
    "host",
    [
        *("", "Edge.us", "a..b", "a.", ".a", "-a", "a b", "a/b", "a:1", "ü"),
        *("[::1]", "::0001", "fe80::1%eth0", "a" * 64, ".".join(["a" * 63] * 4)),
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(EdgeListError):
        ListedEdge(host, 4433)


def test_a_list_is_bounded() -> None:
    many = tuple(ListedEdge(f"edge-{at}.example.net", 4433) for at in range(MAX_EDGES))
    assert len(read(sign(replace(EDGES, edges=many), KEY).encoded()).edges.edges) == MAX_EDGES
    with pytest.raises(EdgeListError):
        replace(EDGES, edges=(*many, US))
    long = tuple(
        ListedEdge(".".join(["a" * 60] * 3 + [str(at)]), 1, server_name=".".join(["b" * 60] * 3))
        for at in range(MAX_EDGES)
    )
    with pytest.raises(EdgeListError, match="bytes"):
        sign(replace(EDGES, edges=long), KEY).encoded()
    with pytest.raises(EdgeListError, match="bytes"):
        read(b" " * (MAX_BYTES + 1))
    with pytest.raises(EdgeListError):
        read(b"[" * MAX_BYTES)


def test_a_list_of_another_key_or_without_a_key_is_refused() -> None:
    stranger = sign(EDGES, OTHER).encoded()
    for keys in ([], KEYS):
        with pytest.raises(EdgeListError, match="none of the keys"):
            accepted(stranger, keys, NOW)
    assert accepted(stranger, [*KEYS, OTHER.public_key()], NOW) == EDGES, "while keys change"


def test_a_signature_for_something_else_is_none() -> None:
    bare = json.loads(TEXT)
    del bare["signature"]
    text = json.dumps(bare, indent=1, sort_keys=True).encode() + b"\n"
    with pytest.raises(EdgeListError, match="none of the keys"):
        SignedEdgeList(EDGES, KEY.sign(text)).check(KEYS)


def test_a_list_that_has_ended_is_refused() -> None:
    assert accepted(TEXT, KEYS, EDGES.valid_until - 1) == EDGES
    with pytest.raises(EdgeListError, match="ended"):
        accepted(TEXT, KEYS, EDGES.valid_until)


@given(st.integers(1, 20), st.integers(1, 20))
def test_versions_only_rise(known: int, version: int) -> None:
    newest = replace(EDGES, version=known)
    same, other = replace(EDGES, version=version), replace(EDGES, version=version, edges=(US,))
    for came, is_taken in ((same, version >= known), (other, version > known)):
        text = sign(came, KEY).encoded()
        if is_taken:
            assert accepted(text, KEYS, NOW, newest) == came
        else:
            with pytest.raises(EdgeListError):
                accepted(text, KEYS, NOW, newest)


def test_keys_have_one_text() -> None:
    text = key_text(KEYS[0])
    assert key_text(read_key(text)) == text
    bare = text.removeprefix("ed25519:")
    for wrong in ("", bare, text + " ", text[:-2], "ed25519:" + bare[:-2] + "B=", "x25519:" + bare):
        with pytest.raises(EdgeListError):
            read_key(wrong)


def test_a_private_key_comes_back_from_its_file() -> None:
    assert read_private(private_pem(KEY)).private_bytes_raw() == KEY.private_bytes_raw()
    p256 = generate_private_key(SECP256R1())
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = KEY.private_bytes(*encoding, serialization.BestAvailableEncryption(b"secret"))
    plain = p256.private_bytes(*encoding, serialization.NoEncryption())
    for wrong in (b"", private_pem(KEY)[:-60], plain, locked):
        with pytest.raises(EdgeListError):
            read_private(wrong)
