"""Salts: one per tenant, known to nobody without the key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.wire.identity import Identities, Identity


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_tenants_never_have_the_same_salt(one: str, other: str) -> None:
    identities = Identities("key")
    salts = identities.of(one).cache_salt, identities.of(other).cache_salt
    assert (salts[0] == salts[1]) == (one == other)


def test_nobody_in_particular_has_no_salt() -> None:
    assert Identities("key").of("") == Identity("", b"")


def test_a_chat_alone_shares_its_salt_with_nobody() -> None:
    identities = Identities("key")
    chats = [identities.alone("acme") for _ in range(3)] + [identities.of("acme")]
    assert {chat.tenant for chat in chats} == {"acme"}
    assert len({chat.cache_salt for chat in chats}) == len(chats)


def test_edges_of_one_key_agree_and_others_do_not() -> None:
    named = Identities("key").of("acme")
    assert (named.tenant, len(named.cache_salt)) == ("acme", 16)
    assert Identities("key").of("acme") == named
    assert Identities("k" * 500).of("acme") != named
    assert Identities().of("acme") != Identities().of("acme")
