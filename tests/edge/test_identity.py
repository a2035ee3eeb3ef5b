"""Whose a chat is: who shares a group with whom under each policy, and what a key allows."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import (
    ConfigError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.session_types import Priority
from services.edge.identity import (
    AccessPolicy,
    ApiKeys,
    Credential,
    Identities,
    Identity,
    TenantConfig,
    Trust,
)

SECRET = b"s" * 16
CREDENTIALS = st.builds(
    Credential,
    st.sampled_from(["", "key-a", "key-a2", "key-b"]),
    st.sampled_from(["", "ann", "bob"]),
    st.sampled_from([b"", SECRET, b"t" * 64]),
)


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def identities(trust: Trust, key: bytes = b"key") -> Identities:
    """Two tenants and strangers, under one policy."""
    name = trust.name.lower()
    tenants = (
        TenantConfig("a", (digest("key-a"), digest("key-a2")), name),
        TenantConfig("b", (digest("key-b"),), name),
    )
    return Identities(key, ApiKeys(tenants), AccessPolicy("", trust))


def tenant(credential: Credential) -> str:
    return credential.key[:5]


def client(credential: Credential, connection: bytes) -> object:
    return tenant(credential), credential.client_secret or connection


def user(credential: Credential, connection: bytes) -> object:
    if credential.key and credential.user:
        return tenant(credential), credential.user
    return client(credential, connection)


@pytest.mark.parametrize(
    ("trust", "who"),
    [
        (Trust.TENANT, lambda credential, connection: tenant(credential)),
        (Trust.USER, user),
        (Trust.CONNECTION, client),
        (Trust.CHAT, client),
    ],
)
@given(st.lists(st.tuples(CREDENTIALS, st.sampled_from([b"1" * 16, b"2" * 16])), min_size=2))
def test_two_chats_are_of_one_group_as_the_policy_says(
    trust: Trust,
    who: Callable[[Credential, bytes], object],
    asked: list[tuple[Credential, bytes]],
) -> None:
    edge, other = identities(trust), identities(trust, b"another key")
    chats = [edge.of(*one, b"%016d" % number) for number, one in enumerate(asked)]
    for one, mine in zip(asked, chats, strict=True):
        assert mine.tenant == tenant(one[0])[4:]
        for two, theirs in zip(asked, chats, strict=True):
            assert (mine.owner == theirs.owner) == (who(*one) == who(*two))
            assert (mine.request_id("k") == theirs.request_id("k")) == (who(*one) == who(*two))
        away = other.of(*one, b"%016d" % 0)
        assert away.owner != mine.owner and away.cache_salt != mine.cache_salt
    if trust is Trust.CHAT:
        assert len({chat.cache_salt for chat in chats}) == len(chats)
        assert {chat.group for chat in chats} == {b""}
    else:
        assert all(chat.owner != chat.cache_salt == chat.group for chat in chats)
        salts = {chat.owner: chat.cache_salt for chat in chats}
        assert len(set(salts.values())) == len(salts)
        assert all(salts[chat.owner] == chat.cache_salt for chat in chats)


def test_a_wrong_key_is_refused_and_no_key_where_one_is_needed() -> None:
    edge = Identities(b"key", ApiKeys([TenantConfig("a", (digest("key-a"),))]), None)
    for key in ("key-b", digest("key-a"), "KEY-A", "key-a "):
        with pytest.raises(UnauthenticatedError, match="not known"):
            edge.of(Credential(key), SECRET, SECRET)
    with pytest.raises(UnauthenticatedError, match="with a key"):
        edge.of(Credential(client_secret=SECRET), SECRET, SECRET)
    assert edge.of(Credential("key-a"), SECRET, SECRET).tenant == "a"
    assert "key-a" not in repr(Credential("key-a", "ann", SECRET))


@pytest.mark.parametrize(
    "credential",
    [
        Credential(client_secret=b"short"),
        Credential(client_secret=b"x" * 65),
        Credential("k" * 600),
        Credential("key-a", "u" * 300),
    ],
)
def test_credentials_are_bounded(credential: Credential) -> None:
    with pytest.raises(InvalidRequestError):
        identities(Trust.USER).of(credential, SECRET, SECRET)


def test_a_class_above_what_a_key_is_for_is_refused() -> None:
    for top in Priority:
        who = Identity(max_priority=top)
        for asked in Priority:
            if asked <= top:
                assert who.class_of(asked) == asked
            else:
                with pytest.raises(PermissionDeniedError, match=f"priority {top.name.lower()}"):
                    who.class_of(asked)
        assert who.class_of(None) == min(top, Priority.MEDIUM), "no class is asked for"


@pytest.mark.parametrize(
    "settings",
    [
        {"name": ""},
        {"name": "a", "key_digests": ("key",)},
        {"name": "a", "key_digests": (digest("x").upper(),)},
        {"name": "a", "trust": "everybody"},
        {"name": "a", "max_priority": "highest"},
    ],
)
def test_tenants_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TenantConfig(**{"key_digests": (), **settings})  # type: ignore[arg-type]


def test_names_and_keys_are_one_tenants() -> None:
    one = TenantConfig("a", (digest("x"),))
    with pytest.raises(ConfigError, match="tenant a is named twice"):
        ApiKeys([one, TenantConfig("a", ())])
    with pytest.raises(ConfigError, match="key of tenant b"):
        ApiKeys([one, TenantConfig("b", (digest("x"),))])


def test_clients_of_one_address_share_the_queue_and_those_of_a_tenant_do_not() -> None:
    identities = Identities(b"key", ApiKeys([TenantConfig("acme", (digest("k"),))]))

    def share(address: str, key: str = "") -> bytes:
        return identities.of(Credential(key), os.urandom(16), os.urandom(16), address).address_hash

    assert share("192.0.2.1") == share("192.0.2.1") != share("192.0.2.2")
    assert share("192.0.2.1", "k") == b"", "who has a key is known by it"
    assert b"192" not in share("192.0.2.1"), "no router learns the address"

    def origin(address: str, key: str = "") -> str:
        return identities.of(Credential(key), os.urandom(16), os.urandom(16), address).origin

    assert origin("192.0.2.1") == origin("192.0.2.1") != origin("192.0.2.2")
    assert origin("192.0.2.1", "k") == origin("192.0.2.2", "k") == "acme"


def test_what_models_a_credential_is_for_can_change_while_its_keys_stay() -> None:
    tenants = [
        TenantConfig(name, (sha256(name.encode()).hexdigest(),), models=models)
        for name, models in (("one", ("a",)), ("two", ()))
    ]
    identities = Identities(b"k", ApiKeys(tenants), AccessPolicy(models=("b",)))

    def models() -> list[tuple[str, ...]]:
        credentials = (Credential(), Credential("one"), Credential("two"))
        return [identities.of(it, b"s" * 16, b"c" * 16).models for it in credentials]

    def anonymous(of: Identities) -> tuple[str, ...] | None:
        return of.anonymous_models

    before = [identities.of(Credential(it), b"s" * 16, b"c" * 16).group for it in ("one", "two")]
    assert models() == [("b",), ("a",), ()]
    assert anonymous(identities) == ("b",)
    identities.allow((), {"one": ("c",), "nobody": ("d",)})
    assert models() == [(), ("c",), ()]
    assert anonymous(identities) == ()
    after = [identities.of(Credential(it), b"s" * 16, b"c" * 16).group for it in ("one", "two")]
    assert after == before, "who trusts whom does not change with it"
    closed = Identities(b"k", ApiKeys(tenants), None)
    closed.allow(("a",), {})
    assert anonymous(closed) is None


@pytest.mark.parametrize("key_lasts", [True, False])
@given(
    st.sampled_from(Trust),
    st.lists(st.tuples(CREDENTIALS, st.sampled_from([b"1" * 16])), max_size=4),
)
def test_only_known_groups_under_a_key_that_lasts_are_kept(
    key_lasts: bool, trust: Trust, asked: list[tuple[Credential, bytes]]
) -> None:
    """A connection's own group never is, whatever secret its client sends."""
    name = trust.name.lower()
    keys = ApiKeys([TenantConfig("a", (digest("key-a"), digest("key-a2"), digest("key-b")), name)])
    edge = Identities(b"key", keys, AccessPolicy("", trust), key_lasts=key_lasts)
    for credential, connection in asked:
        is_user = trust is Trust.USER and bool(credential.key and credential.user)
        lasts = edge.of(credential, connection, b"c" * 16).group_lasts
        assert lasts == (key_lasts and (trust is Trust.TENANT or is_user))
