"""Identifies a certificate's owner by the names in it (pure).

Two forms of subject alternative names count, in one trust domain:

    spiffe://<trust domain>/<role>[/<region>[/<name>]]        a SPIFFE id (SPIFFE-ID, section 2)
    [[<name>.]<region>.]<role>.<trust domain>                 a DNS name

Clients may have either. Servers need DNS names: gRPC compares those with the one that the client
expects (RFC 9525), `<role>.<trust domain>`, or `<region>.<role>.<trust domain>` if the region
matters. All names of a certificate must be of one owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from outrider.errors import UnauthenticatedError

_SCHEME: Final = "spiffe://"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MAX_NAMES: Final = 64


class Role(StrEnum):
    """A process's role in the mesh."""

    EDGE = "edge"
    ROUTER = "router"
    TOKENIZER = "tokenizer"
    TOKENIZER_WORKER = "tokenizer-worker"
    INFERENCE = "inference"
    MODELS = "models"
    """Serves models' files to the others (`outrider models serve`)."""
    OPERATOR = "operator"
    """A person or a program that asks how the mesh does."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The owner of a certificate."""

    role: Role
    region: str = ""
    """Empty: the certificate names no region."""
    name: str = ""
    """Name of the process within role and region; empty: the certificate has none."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.role.value, self.region, self.name) if part)


def is_label(text: str) -> bool:
    """Whether it can be a region or name in a certificate: a DNS label in lower case."""
    return _LABEL.fullmatch(text) is not None


def server_name(role: Role, trust_domain: str, region: str = "") -> str:
    """The DNS name that the certificate of a server of that role, and region, must have."""
    return f"{region}.{role}.{trust_domain}" if region else f"{role}.{trust_domain}"


def dns_names(identity: PeerIdentity, trust_domain: str) -> tuple[str, ...]:
    """All DNS names of an owner, the shortest first."""
    names = [f"{identity.role}.{trust_domain}"]
    for part in (identity.region, identity.name):
        if not part:
            break
        names.append(f"{part}.{names[-1]}")
    return tuple(names)


def spiffe_id(identity: PeerIdentity, trust_domain: str) -> str:
    """An owner's SPIFFE id."""
    return f"{_SCHEME}{trust_domain}/{identity}"


def identify(uris: Iterable[str], dns: Iterable[str], trust_domain: str) -> PeerIdentity:
    """The owner of a certificate with these subject alternative names; DNS names outside the trust
    domain are ignored. Raises UnauthenticatedError if they name no owner, or more than one."""
    found: list[PeerIdentity] = []
    for number, uri in enumerate(uris):
        if uri.startswith(_SCHEME):
            found.append(_of_spiffe(uri, trust_domain))
        _check_count(number)
    for number, name in enumerate(dns):
        if name.endswith(f".{trust_domain}"):
            found.append(_of_dns(name, trust_domain))
        _check_count(number)
    if not found:
        raise UnauthenticatedError(
            f"the certificate names no role of {trust_domain}; issue one with a SPIFFE id or DNS "
            "name of docs/guides/certificates.md"
        )
    best = max(found, key=lambda it: (bool(it.region), bool(it.name)))
    for other in found:
        agrees = other.region in ("", best.region) and other.name in ("", best.name)
        if other.role is not best.role or not agrees:
            raise UnauthenticatedError(f"the certificate names both {best} and {other}; use two")
    return best


def _of_spiffe(uri: str, trust_domain: str) -> PeerIdentity:
    authority, _, path = uri.removeprefix(_SCHEME).partition("/")
    if authority != trust_domain:
        raise UnauthenticatedError(f"{uri} is of another trust domain than {trust_domain}")
    return _identity(path.split("/"), uri)


def _of_dns(name: str, trust_domain: str) -> PeerIdentity:
    return _identity(name.removesuffix(f".{trust_domain}").split(".")[::-1], name)


def _identity(parts: list[str], text: str) -> PeerIdentity:
    """From role, region, name, or less."""
    role, *rest = parts
    if role not in _ROLES or len(rest) > 2 or not all(map(is_label, rest)):
        raise UnauthenticatedError(f"{text[:200]} names no role with region and name")
    return PeerIdentity(Role(role), *rest)


def _check_count(number: int) -> None:
    if number >= _MAX_NAMES:
        raise UnauthenticatedError(f"the certificate has more than {_MAX_NAMES} names of a kind")


_ROLES: Final = frozenset(role.value for role in Role)
