"""When certificates end is told at each scrape, after a rotation too."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from outrider.rpc.certificate_expiry import NOT_AFTER, CertificateExpiry, not_after
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.tls.certificates import read_certificates
from tests.tls.issuing import Issuer


def told(registry: CollectorRegistry) -> dict[str, float]:
    """Unix times by what the certificate is for."""
    return {
        sample.labels["certificate"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == NOT_AFTER
    }


def test_it_tells_of_the_certificates_in_use(tmp_path: Path) -> None:
    tls = Issuer(tmp_path / "tls").tls(Role.EDGE)
    registry = CollectorRegistry()
    expiry = CertificateExpiry(tls)
    registry.register(expiry)
    assert tls.current is not None and tls.config.certificate and tls.config.ca
    leaf, ca = tls.config.certificate.read_bytes(), tls.config.ca.read_bytes()
    mesh = {"mesh": not_after(leaf).timestamp(), "mesh_ca": not_after(ca).timestamp()}
    assert told(registry) == mesh
    expiry.shown_to_clients(tmp_path / "cert.pem", datetime(2031, 5, 1, tzinfo=UTC))
    assert told(registry) == {**mesh, "clients": datetime(2031, 5, 1, tzinfo=UTC).timestamp()}
    tls.replace(read_certificates(Issuer(tmp_path / "new").config(Role.EDGE)))
    assert told(registry)["mesh"] == tls.current.expires_at.timestamp()


def test_without_certificates_it_tells_nothing() -> None:
    registry = CollectorRegistry()
    registry.register(CertificateExpiry(Tls(PLAINTEXT.config)))
    assert told(registry) == {}
