"""An issuer of tokens for tests: keys of every kind, and what it signs with them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

ISSUER: Final = "https://login.example"
AUDIENCE: Final = "outrider"
NOW: Final = 1_700_000_000.0


@cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """A key pair for this algorithm; another one for another number."""
    if algorithm.startswith(("RS", "PS")):
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.generate_private_key(curves[algorithm])


def jwk(algorithm: str, kid: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """The public key, as an issuer shows it."""
    key = private_key(algorithm, number).public_key()
    row: dict[str, Any] = get_default_algorithms()[algorithm].to_jwk(key, as_dict=True)
    return row | {"kid": kid} | more


def key_set(*rows: dict[str, Any]) -> bytes:
    """What an issuer publishes."""
    return json.dumps({"keys": rows}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """Of a good token; None takes one out."""
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": NOW + 600,
        "tenant": "acme",
        "sub": "ann",
        "scope": "openid chat models",
    }
    return {name: value for name, value in (good | more).items() if value is not None}


def token(
    algorithm: str = "ES256",
    kid: str | None = "k",
    number: int = 0,
    headers: dict[str, Any] | None = None,
    **more: Any,
) -> str:
    """Signed by the issuer."""
    named = {} if kid is None else {"kid": kid}
    return jwt.encode(
        claims(**more), private_key(algorithm, number), algorithm, headers=named | (headers or {})
    )
