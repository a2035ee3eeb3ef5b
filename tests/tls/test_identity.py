"""Names in certificates, and what they say of their owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import UnauthenticatedError
from outrider.tls.identity import PeerIdentity, Role, dns_names, identify, server_name, spiffe_id

DOMAIN = "outrider.internal"
LABELS = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z")
IDENTITIES = st.one_of(
    st.builds(PeerIdentity, st.sampled_from(Role)),
    st.builds(PeerIdentity, st.sampled_from(Role), LABELS),
    st.builds(PeerIdentity, st.sampled_from(Role), LABELS, LABELS),
)


@given(IDENTITIES, st.booleans(), st.booleans())
def test_an_owner_is_known_by_either_form(owner: PeerIdentity, uri: bool, dns: bool) -> None:
    uris = [spiffe_id(owner, DOMAIN)] if uri or not dns else []
    names = dns_names(owner, DOMAIN) if dns else ()
    assert identify(uris, names, DOMAIN) == owner


@given(IDENTITIES)
def test_servers_have_the_names_that_clients_expect(owner: PeerIdentity) -> None:
    names = dns_names(owner, DOMAIN)
    assert server_name(owner.role, DOMAIN) in names
    assert server_name(owner.role, DOMAIN, owner.region) in names


@given(st.lists(st.text(max_size=40)), st.lists(st.text(max_size=40)))
def test_nothing_is_made_of_other_names(uris: list[str], names: list[str]) -> None:
    with pytest.raises(UnauthenticatedError):
        identify(uris, names, DOMAIN)


@pytest.mark.parametrize(
    ("uris", "names"),
    [
        ([], []),
        (["spiffe://elsewhere/router"], ["router.outrider.internal"]),
        (["spiffe://outrider.internal"], []),
        (["spiffe://outrider.internal/"], []),
        (["spiffe://outrider.internal/admin"], []),
        (["spiffe://outrider.internal/router/"], []),
        (["spiffe://outrider.internal/router/us/a/b"], []),
        (["spiffe://outrider.internal/router/US"], []),
        (["spiffe://outrider.internal/router/../edge"], []),
        (["https://outrider.internal/router"], []),
        ([], ["router.elsewhere"]),
        ([], ["outrider.internal"]),
        ([], ["xrouter.outrider.internal"]),
        ([], ["*.router.outrider.internal"]),
        ([], ["a.b.c.router.outrider.internal"]),
        ([], ["router.outrider.internal", "edge.outrider.internal"]),
        ([], ["us.inference.outrider.internal", "eu.inference.outrider.internal"]),
        (["spiffe://outrider.internal/router"], ["operator.outrider.internal"]),
        ([], [f"n{n}.x" for n in range(65)]),
    ],
)
def test_what_names_nobody_or_two(uris: list[str], names: list[str]) -> None:
    with pytest.raises(UnauthenticatedError):
        identify(uris, names, DOMAIN)


def test_names_outside_the_trust_domain_say_nothing() -> None:
    names = ["10-1-2-3.inference.pod.cluster.local", "us.inference.outrider.internal"]
    assert identify([], names, DOMAIN) == PeerIdentity(Role.INFERENCE, "us")
