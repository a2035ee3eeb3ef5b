"""Which tokens are good: whatever a hostile one says, it chooses nothing."""

from __future__ import annotations

import base64
import hmac
import json
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from outrider.access.api_keys import Scope
from outrider.errors import ConfigError, UnauthenticatedError
from services.edge.access import tokens
from services.edge.access.identity import TokenClaims
from services.edge.access.key_set import ALGORITHMS, MAX_SET_KEYS, read_key_set
from services.edge.access.tokens import TokenPolicy, TokenVerifier
from tests.edge.access.issuer import AUDIENCE, ISSUER, NOW, jwk, key_set, private_key, token

POLICY = TokenPolicy(ISSUER, AUDIENCE, frozenset(ALGORITHMS))
GOOD = TokenClaims("acme", "ann", frozenset({Scope.CHAT, Scope.MODELS}))


class Issuer:
    """A verifier that has these keys."""

    def __init__(self, *rows: dict[str, Any], policy: TokenPolicy = POLICY) -> None:
        self.num_wanted = 0
        self.verifier = TokenVerifier(policy, self._want)
        self.show(*(rows or (jwk("ES256", "k"),)))

    def _want(self) -> None:
        self.num_wanted += 1

    def show(self, *rows: dict[str, Any]) -> None:
        self.verifier.set_keys(read_key_set(key_set(*rows), POLICY.algorithms))

    def refused(self, text: str, now: float = NOW) -> str:
        with pytest.raises(UnauthenticatedError) as error:
            self.verifier.check(text, now)
        return error.value.message


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_verifies(algorithm: str) -> None:
    issuer = Issuer(jwk(algorithm, "k"))
    assert issuer.verifier.check(token(algorithm), NOW) == GOOD
    assert "not valid" in issuer.refused(token(algorithm, number=1))


@pytest.mark.parametrize(
    ("change", "now", "says"),
    [
        ({"exp": NOW + 1}, NOW + 30.9, ""),
        ({"exp": NOW + 1}, NOW + 31.0, "expired"),
        ({"exp": None}, NOW, "no exp"),
        ({"exp": "soon"}, NOW, "not valid"),
        ({"exp": True}, NOW, "not valid"),
        ({"exp": 10**400}, NOW, "not valid"),
        ({"nbf": NOW + 30}, NOW, ""),
        ({"nbf": NOW + 31}, NOW, "not valid yet"),
        ({"iat": NOW + 31}, NOW, "not valid yet"),
        ({"iss": "https://login.example/"}, NOW, "another issuer"),
        ({"iss": None}, NOW, "another issuer"),
        ({"aud": "others"}, NOW, "another audience"),
        ({"aud": None}, NOW, "another audience"),
        ({"aud": ["others", AUDIENCE]}, NOW, ""),
        ({"aud": ["x"] * 64 + [AUDIENCE]}, NOW, "another audience"),
        ({"aud": {AUDIENCE: 1}}, NOW, "another audience"),
        ({"tenant": None}, NOW, "no tenant"),
        ({"tenant": ""}, NOW, "no tenant"),
        ({"tenant": ["acme"]}, NOW, "no tenant"),
        ({"tenant": "x" * 129}, NOW, "no tenant"),
        ({"scope": 7}, NOW, "no list of scopes"),
        ({"scope": ["chat", "models", 1]}, NOW, ""),
    ],
)
def test_claims(change: dict[str, Any], now: float, says: str) -> None:
    issuer, text = Issuer(), token(**change)
    if says:
        assert says in issuer.refused(text, now)
        assert issuer.verifier.num_remembered == 0
    else:
        assert issuer.verifier.check(text, now) == GOOD


def test_what_is_required_is_what_the_configuration_says() -> None:
    loose = Issuer(policy=TokenPolicy(ISSUER, AUDIENCE, frozenset({"ES256"}), required=frozenset()))
    assert loose.verifier.check(token(exp=None), NOW) == GOOD
    strict = TokenPolicy(ISSUER, AUDIENCE, frozenset({"ES256"}), frozenset({"exp", "nbf", "jti"}))
    assert "no jti" in Issuer(policy=strict).refused(token())
    assert Issuer(policy=strict).verifier.check(token(jti="1", nbf=NOW), NOW) == GOOD


def test_claims_have_the_names_of_the_configuration() -> None:
    policy = TokenPolicy(
        *(ISSUER, AUDIENCE, frozenset({"ES256"})),
        tenant="all",
        user_claim="email",
        scope_claim="permissions",
        scopes=frozenset({Scope.TOKENIZE}),
    )
    found = Issuer(policy=policy).verifier
    assert found.check(token(email="a@b"), NOW) == TokenClaims(
        "all", "a@b", frozenset({Scope.TOKENIZE})
    )
    said = found.check(token(email="a@b", permissions=["admin", "root"]), NOW)
    assert said.scopes == {Scope.ADMIN}
    with pytest.raises(UnauthenticatedError, match="no name"):
        found.check(token(email="x" * 257), NOW)


# Confusion of algorithms and keys.


def forged(header: dict[str, Any], secret: bytes | None = None) -> str:
    body = f"{part(header)}.{token().split('.')[1]}"
    signature = b"x" if secret is None else hmac.digest(secret, body.encode(), sha256)
    return f"{body}.{part(signature)}"


def test_nothing_is_verified_with_a_public_key_as_a_secret() -> None:
    public = private_key("RS256").public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    issuer = Issuer(jwk("RS256", "k"), jwk("ES256", "e"))
    for secret in (pem, pem.strip(), json.dumps(jwk("RS256", "k")).encode()):
        assert "not valid" in issuer.refused(forged({"alg": "HS256", "kid": "k"}, secret))
        assert "not valid" in issuer.refused(forged({"alg": "RS256", "kid": "k"}, secret))
    assert issuer.num_wanted == 0


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "", "HS256", "HS512", "ES256K", 1])
def test_algorithms_are_pinned(algorithm: object) -> None:
    issuer = Issuer()
    header = {"alg": algorithm, "kid": "k"}
    assert "not valid" in issuer.refused(forged(header))
    unsigned = f"{part(header)}.{token().split('.')[1]}."
    assert "not valid" in issuer.refused(unsigned)
    assert issuer.verifier.num_verified == 0


def test_a_key_verifies_its_own_algorithms_alone() -> None:
    issuer = Issuer(jwk("ES256", "k"), jwk("RS256", "r", alg="RS256"), jwk("EdDSA", "d"))
    for kid, algorithm in (("k", "RS256"), ("r", "ES256"), ("r", "PS256"), ("d", "ES256")):
        assert "not known yet" in issuer.refused(token(algorithm, kid))


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": jwk("ES256", "k", 1)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/keys"},
        {"x5c": ["MIIB"]},
    ],
)
def test_keys_that_a_token_brings_along_are_not_looked_at(header: dict[str, Any]) -> None:
    assert "not valid" in Issuer().refused(token("ES256", "k", 1, header))


def test_what_is_critical_is_not_understood() -> None:
    assert "not valid" in Issuer().refused(token(headers={"crit": ["exp"], "exp": 1}))


@pytest.mark.parametrize(
    "row",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k"},
        {"kty": "RSA", "kid": "k"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "k"},
        {"kty": "EC", "crv": "secp256k1", "kid": "k"},
        {"kty": 1},
        jwk("ES256", "k", use="enc"),
        jwk("ES256", "k", key_ops=["sign"]),
        jwk("ES256", "k" * 300),
        jwk("ES256", "k", alg="ES512"),
        "key",
        None,
    ],
)
def test_keys_that_are_not_taken(row: Any) -> None:
    with pytest.raises(ConfigError, match="none of the 1 keys"):
        read_key_set(key_set(row), POLICY.algorithms)


def test_short_keys_are_not_taken() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()
    row: dict[str, Any] = RSAAlgorithm.to_jwk(short, as_dict=True)
    with pytest.raises(ConfigError, match="none of the 1 keys"):
        read_key_set(key_set(row | {"kid": "k"}), POLICY.algorithms)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\xff", b'{"keys": 1}', b'{"keys": []}', b"[" * 200_000, b" " * 300_000],
)
def test_sets_that_are_none(text: bytes) -> None:
    with pytest.raises(ConfigError):
        read_key_set(text, POLICY.algorithms)


def test_a_set_is_bounded() -> None:
    rows = [jwk("ES256", str(number)) for number in range(MAX_SET_KEYS)]
    assert len(read_key_set(key_set(*rows), POLICY.algorithms)) == MAX_SET_KEYS
    with pytest.raises(ConfigError, match="at most 64"):
        read_key_set(key_set(*rows, rows[0]), POLICY.algorithms)


# Garbage.


@given(st.text(max_size=300))
def test_text_that_is_no_token(text: str) -> None:
    Issuer().refused(text)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=100))
def test_bytes_in_the_form_of_a_token(header: bytes, body: bytes, signature: bytes) -> None:
    issuer = Issuer()
    issuer.refused(".".join(map(part, (header, body, signature))))
    real = token().split(".")
    issuer.refused(f"{real[0]}.{part(body)}.{real[2]}")
    issuer.refused(f"{part(header)}.{real[1]}.{real[2]}")
    assert issuer.num_wanted == 0


@pytest.mark.parametrize(
    "text",
    [
        "a" * 9000 + ".b.c",
        "." * 5000,
        "a." * 4000,
        part(b"[" * 700) + ".b.c",
        part(b'{"alg":"ES256","kid":"' + b"k" * 700 + b'"}') + ".b.c",
        part(b'{"alg":"ES256","alg":"none","kid":"k"}') + ".b.c",
        part({"alg": "ES256", "kid": 1}) + ".b.c",
        part({"alg": "ES256", "kid": "k" * 257}) + ".b.c",
        part(b"{" + b'"a":' * 200) + ".b.c",
    ],
)
def test_hostile_tokens_cost_no_signature(text: str) -> None:
    issuer = Issuer()
    issuer.refused(text)
    assert issuer.verifier.num_verified == 0 and issuer.num_wanted == 0


# What is remembered.


def test_a_signature_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer, text = Issuer(), token()
    for second in range(0, 600, 60):
        assert issuer.verifier.check(text, NOW + second) == GOOD
    assert issuer.verifier.num_verified == 1
    assert "expired" in issuer.refused(text, NOW + 630), "no longer than it is good"


def test_so_many_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MAX_REMEMBERED", 3)
    issuer = Issuer()
    texts = [token(sub=str(number)) for number in range(4)]
    for text in texts:
        issuer.verifier.check(text, NOW)
    assert issuer.verifier.num_remembered == 3
    issuer.verifier.check(texts[3], NOW)
    assert issuer.verifier.num_verified == 4
    issuer.verifier.check(texts[0], NOW)
    assert issuer.verifier.num_verified == 5, "the longest unused was forgotten"


def test_keys_rotate() -> None:
    issuer = Issuer(jwk("ES256", "old"))
    old, new = token(kid="old"), token(kid="new", number=1)
    assert issuer.verifier.check(old, NOW) == GOOD
    with pytest.raises(UnauthenticatedError, match="not known yet") as unknown:
        issuer.verifier.check(new, NOW)
    assert issuer.num_wanted == 1 and unknown.value.retry_delay_ms > 0
    issuer.show(jwk("ES256", "old"), jwk("ES256", "new", 1))
    assert issuer.verifier.check(new, NOW) == issuer.verifier.check(old, NOW) == GOOD
    issuer.show(jwk("ES256", "new", 1))
    assert "not known yet" in issuer.refused(old), "a key that is withdrawn counts at once"


def test_a_token_without_a_name_of_its_key() -> None:
    text = token(kid=None)
    assert Issuer().verifier.check(text, NOW) == GOOD
    assert "not known yet" in Issuer(jwk("ES256", "a"), jwk("ES256", "b", 1)).refused(text)
