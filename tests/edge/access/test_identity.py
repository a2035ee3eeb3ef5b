"""Whose a chat is: who shares a group with whom under each policy, and what a key allows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.access.api_keys import (
    ALL_MODELS,
    USER_SCOPES,
    ApiKey,
    KeyTable,
    Scope,
)
from outrider.errors import (
    ConfigError,
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.session.types import Priority
from services.edge.access.identity import (
    MAX_TENANTS,
    AccessPolicy,
    Credential,
    Identities,
    Identity,
    TenantConfig,
    Tenants,
    TokenClaims,
    Trust,
)
from tests.api_keys import key_of, text_of

SECRET = b"s" * 16
CREDENTIALS = st.builds(
    Credential,
    st.sampled_from(["", text_of("a"), text_of("a2"), text_of("b")]),
    st.sampled_from(["", "ann", "bob"]),
    st.sampled_from([b"", SECRET, b"t" * 64]),
)


KEYS = (key_of("a"), key_of("a2", "a"), key_of("b"))
TENANT_OF = {text_of("a"): "a", text_of("a2"): "a", text_of("b"): "b", "": ""}


def identities(trust: Trust, key: bytes = b"key") -> Identities:
    """Two tenants and strangers, under one policy."""
    name = trust.name.lower()
    tenants = Tenants([TenantConfig("a", name), TenantConfig("b", name)])
    return Identities(
        key, KeyTable(KEYS), AccessPolicy("", trust), clock=lambda: 0.0, tenants=tenants
    )


def edge_of(
    *keys: ApiKey,
    tenants: tuple[TenantConfig, ...] = (),
    anonymous: AccessPolicy | None = None,
    now: float = 0.0,
) -> Identities:
    return Identities(
        b"key", KeyTable(keys), anonymous, clock=lambda: now, tenants=Tenants(tenants)
    )


def tenant(credential: Credential) -> str:
    return TENANT_OF[credential.key]


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
        assert mine.tenant == tenant(one[0])
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
    edge = edge_of(key_of("a"))
    right = text_of("a")
    for key in (text_of("b"), right.upper(), right + " ", right[:-1] + "x", right[:16], "x", "."):
        with pytest.raises(UnauthenticatedError, match="not known"):
            edge.of(Credential(key), SECRET, SECRET)
    for refused in (edge, edge_of(anonymous=AccessPolicy())):
        with pytest.raises(UnauthenticatedError, match="with an API key"):
            refused.of(Credential(client_secret=SECRET), SECRET, SECRET, needs_key=True)
    with pytest.raises(UnauthenticatedError, match="with an API key"):
        edge.of(Credential(client_secret=SECRET), SECRET, SECRET)
    assert edge.of(Credential(right), SECRET, SECRET, needs_key=True).tenant == "a"
    assert right not in repr(Credential(right, "ann", SECRET))


def test_a_wrong_secret_does_not_tell_that_the_id_exists() -> None:
    """Nor whether its key expired or was revoked."""
    told = set()
    for key in (key_of("a"), key_of("a", expires=1.0), key_of("a", revoked=1.0), key_of("b")):
        wrong = text_of("a")[:-64] + "0" * 64
        with pytest.raises(UnauthenticatedError) as refused:
            edge_of(key, now=5.0).of(Credential(wrong), SECRET, SECRET)
        told.add((refused.value.message, refused.value.retry_delay_ms))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("fields", "says"), [({"expires": 5.0}, "has expired"), ({"revoked": 1.0}, "was revoked")]
)
def test_who_has_the_secret_learns_why_it_is_not_good(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UnauthenticatedError, match=says):
        edge_of(key_of("a", **fields), now=5.0).of(Credential(text_of("a")), SECRET, SECRET)


def test_the_end_of_a_tenants_name_is_not_the_beginning_of_its_users() -> None:
    def owner(name: str, user: str) -> bytes:
        edge = edge_of(key_of("k", name), tenants=(TenantConfig(name, trust="user"),))
        return edge.of(Credential(text_of("k"), user), SECRET, SECRET).owner

    assert len({owner("ab", "c"), owner("a", "bc"), owner("abc", "d"), owner("a", "bcd")}) == 4


def test_a_key_narrows_what_its_tenant_may() -> None:
    acme = TenantConfig("acme", max_priority="medium", models=("a", "b"), regions=("eu", "us"))

    def found(**fields: object) -> Identity:
        edge = edge_of(key_of("k", "acme", **fields), tenants=(acme,))
        return edge.of(Credential(text_of("k")), SECRET, SECRET)

    assert found().models == ("a", "b") and found().max_priority is Priority.MEDIUM
    assert found(models=("b", "c")).models == ("b",)
    assert found(models=()).models == (), "empty: none"
    assert found(max_priority=Priority.HIGH).max_priority is Priority.MEDIUM
    assert found(max_priority=Priority.LOW).max_priority is Priority.LOW
    assert found().regions == ("eu", "us") and found().scopes == USER_SCOPES
    unlisted = edge_of(key_of("k", "nobody")).of(Credential(text_of("k")), SECRET, SECRET)
    assert unlisted.models == ALL_MODELS and unlisted.tenant == "nobody"
    assert unlisted.client == b"", "one trust group, as of a listed tenant"


def test_scopes_are_what_a_key_was_made_for() -> None:
    key = key_of("k", scopes=frozenset({Scope.MODELS}))
    found = edge_of(key).of(Credential(text_of("k")), SECRET, SECRET)
    found.require(Scope.MODELS)
    for scope in set(Scope) - {Scope.MODELS}:
        with pytest.raises(PermissionDeniedError, match=f"is for models, not for {scope.value}"):
            found.require(scope)
    with pytest.raises(PermissionDeniedError):
        Identity().require(Scope.ADMIN)


@pytest.mark.parametrize(
    ("regions", "asked", "held"),
    [
        (ALL_MODELS, (), ()),
        (ALL_MODELS, ("eu",), ("eu",)),
        (("eu", "us"), (), ("eu", "us")),
        (("eu", "us"), ("us", "ap"), ("us",)),
        (("eu",), ("us",), None),
        ((), (), None),
        ((), ("us",), None),
    ],
)
def test_prompts_stay_in_the_regions_of_their_tenant(
    regions: tuple[str, ...], asked: tuple[str, ...], held: tuple[str, ...] | None
) -> None:
    who = Identity(regions=regions)
    if held is not None:
        assert who.residency(asked) == held
    else:
        with pytest.raises(PermissionDeniedError, match="widen the chat's residency"):
            who.residency(asked)


class Tokens:
    """Knows one token."""

    def check(self, token: str, now: float) -> TokenClaims:
        assert now == 7.0
        if token != "a.good.token":
            raise UnauthenticatedError("not good")
        return TokenClaims("acme", "ann", frozenset({Scope.CHAT}))


def test_a_token_is_of_a_listed_tenant_and_says_whose_user_it_is() -> None:
    def edge(*tenants: TenantConfig) -> Identities:
        return Identities(
            *(b"key", KeyTable([key_of("a")])),
            clock=lambda: 7.0,
            tenants=Tenants(tenants),
            tokens=Tokens(),
        )

    acme = edge(TenantConfig("acme", trust="user"))
    ann = acme.of(Credential("a.good.token"), SECRET, SECRET)
    assert ann.tenant == "acme" and ann.scopes == {Scope.CHAT}
    as_bob = acme.of(Credential("a.good.token", "bob"), SECRET, b"t" * 16)
    assert as_bob.owner == ann.owner, "the token names the user, not the client"
    assert acme.of(Credential(text_of("a")), SECRET, SECRET).tenant == "a"
    with pytest.raises(UnauthenticatedError, match="not good"):
        acme.of(Credential("a.bad.token"), SECRET, SECRET)
    with pytest.raises(PermissionDeniedError, match="tenant 'acme', which this edge does not list"):
        edge().of(Credential("a.good.token"), SECRET, SECRET)
    with pytest.raises(UnauthenticatedError, match="not known"):
        edge_of().of(Credential("a.good.token"), SECRET, SECRET)


@pytest.mark.parametrize(
    "credential",
    [
        Credential(client_secret=b"short"),
        Credential(client_secret=b"x" * 65),
        Credential("k" * 9000),
        Credential(text_of("a"), "u" * 300),
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
        {"name": "no blanks"},
        {"name": "a", "max_sessions": -1},
        {"name": "a", "output_tokens_per_minute": 10**10},
        {"name": "a", "models": ("m",) * 300},
        {"name": "a", "regions": ("",)},
        {"name": "a", "trust": "everybody"},
        {"name": "a", "max_priority": "highest"},
    ],
)
def test_tenants_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TenantConfig(**settings)  # type: ignore[arg-type]


def test_names_are_one_tenants_and_ids_one_keys() -> None:
    with pytest.raises(ConfigError, match="tenant a is named twice"):
        Tenants([TenantConfig("a"), TenantConfig("a", "user")])
    with pytest.raises(ConfigError, match="two keys have the id"):
        KeyTable([key_of("x"), key_of("x", "b")])


def test_there_are_so_many_tenants_and_no_more() -> None:
    tenants = [TenantConfig(f"t{number}") for number in range(MAX_TENANTS)]
    Tenants(tenants)
    with pytest.raises(ConfigError, match="at most 4096"):
        Tenants([*tenants, TenantConfig("more")])


def test_clients_of_one_address_share_the_queue_and_those_of_a_tenant_do_not() -> None:
    identities = edge_of(key_of("acme"), anonymous=AccessPolicy())

    def share(address: str, key: str = "") -> bytes:
        return identities.of(Credential(key), os.urandom(16), os.urandom(16), address).address_hash

    assert share("192.0.2.1") == share("192.0.2.1") != share("192.0.2.2")
    assert share("192.0.2.1", text_of("acme")) == b"", "who has a key is known by it"
    assert b"192" not in share("192.0.2.1"), "no router learns the address"

    def origin(address: str, key: str = "") -> str:
        return identities.of(Credential(key), os.urandom(16), os.urandom(16), address).origin

    assert origin("192.0.2.1") == origin("192.0.2.1") != origin("192.0.2.2")
    assert origin("192.0.2.1", text_of("acme")) == origin("192.0.2.2", text_of("acme")) == "acme"


def test_what_tenants_may_can_change_while_their_keys_stay() -> None:
    one, two = TenantConfig("one", models=("a",)), TenantConfig("two", models=())
    edge = edge_of(
        *(key_of("one"), key_of("two")), tenants=(one, two), anonymous=AccessPolicy(models=("b",))
    )

    def found() -> list[Identity]:
        credentials = (Credential(), Credential(text_of("one")), Credential(text_of("two")))
        return [edge.of(it, b"s" * 16, b"c" * 16) for it in credentials]

    before = found()
    assert [it.models for it in before] == [("b",), ("a",), ()]
    before_models = edge.anonymous_models
    edge.set_tenants(Tenants([replace(one, models=("c",), max_sessions=3), two]), ())
    after = found()
    assert [it.models for it in after] == [(), ("c",), ()]
    assert after[1].limits.max_sessions == 3
    assert (before_models, edge.anonymous_models) == (("b",), ())
    groups = [it.group for it in after]
    assert groups == [it.group for it in before], "who trusts whom does not change with it"
    edge.set_keys(KeyTable([key_of("two")]))
    with pytest.raises(UnauthenticatedError):
        edge.of(Credential(text_of("one")), b"s" * 16, b"c" * 16)
    closed = edge_of()
    closed.set_tenants(Tenants(), ("a",))
    assert closed.anonymous_models is None


@pytest.mark.parametrize("key_lasts", [True, False])
@given(
    st.sampled_from(Trust),
    st.lists(st.tuples(CREDENTIALS, st.sampled_from([b"1" * 16])), max_size=4),
)
def test_only_known_groups_under_a_key_that_lasts_are_kept(
    key_lasts: bool, trust: Trust, asked: list[tuple[Credential, bytes]]
) -> None:
    """A connection's own group never is, whatever secret its client sends."""
    edge = Identities(
        *(b"key", KeyTable(KEYS), AccessPolicy("", trust)),
        clock=lambda: 0.0,
        tenants=Tenants([TenantConfig(it, trust.name.lower()) for it in ("a", "b")]),
        key_lasts=key_lasts,
    )
    for credential, connection in asked:
        is_user = trust is Trust.USER and bool(credential.key and credential.user)
        lasts = edge.of(credential, connection, b"c" * 16).group_lasts
        assert lasts == (key_lasts and (trust is Trust.TENANT or is_user))
