"""Whether a peer's chain still ends in the CA bundle, asked again while its streams run (pure).

The handshake has judged a chain once, by the bundle and the time of then. This is for later: after
the bundle changed, and when certificates end (RFC 5280, section 6.1).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from outrider.errors import UnauthenticatedError

_MAX_CHAIN: Final = 8


def verify(ca: bytes, leaf: bytes, chain: bytes, now: datetime) -> datetime:
    """Raises UnauthenticatedError unless `leaf` (PEM) leads over certificates of `chain` (PEM, may
    be empty) to one of `ca` (PEM). Returns when the first of those on the way ends."""
    try:
        anchors = x509.load_pem_x509_certificates(ca)
        between = x509.load_pem_x509_certificates(chain) if chain else []
        builder = PolicyBuilder().store(Store(anchors)).time(now).max_chain_depth(_MAX_CHAIN)
        # What else the extensions say, the handshake has judged: their uses, constraints, lengths.
        policies = {"ee_policy": ExtensionPolicy.permit_all(), "ca_policy": _CA_POLICY}
        verifier = builder.extension_policies(**policies).build_client_verifier()
        found = verifier.verify(x509.load_pem_x509_certificate(leaf), between[:_MAX_CHAIN])
    except (ValueError, VerificationError) as error:
        raise UnauthenticatedError(f"the certificate does not verify (any more): {error}") from None
    return min(certificate.not_valid_after_utc for certificate in found.chain)


def _is_ca(policy: Policy, certificate: x509.Certificate, found: x509.BasicConstraints) -> None:
    if not found.ca:
        raise ValueError("a certificate on the way is of no CA")


_CA_POLICY: Final = ExtensionPolicy.permit_all().require_present(
    x509.BasicConstraints, Criticality.AGNOSTIC, _is_ca
)
