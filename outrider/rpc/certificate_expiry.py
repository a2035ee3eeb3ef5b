"""When a process's certificates end, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outrider.telemetry.families import Family
from outrider.tls.certificates import Tls

NOT_AFTER: Final = Family(
    "outrider_certificate_not_after_timestamp_seconds",
    "Unix time at which a certificate that is in use ends, by what it is for: mesh (between "
    "services), mesh_ca (the first of the bundle to end), clients (shown to clients of an edge).",
)


def not_after(pem: bytes) -> datetime:
    """When the first certificate of a PEM chain ends. Raises ValueError for what is no PEM."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


class CertificateExpiry(Collector):
    """Reads `tls` at each scrape, so that a rotated certificate counts at once; without
    certificates there is nothing to show."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._for_clients: tuple[Path, datetime] | None = None

    def shown_to_clients(self, path: Path, ends_at: datetime) -> None:
        """An edge shows the certificate of `path` from now on."""
        self._for_clients = path, ends_at

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One row per certificate."""
        family = GaugeMetricFamily(NOT_AFTER, NOT_AFTER.help, labels=["certificate", "file"])
        config, current = self._tls.config, self._tls.current
        if current is not None:
            for name, path, ends_at in (
                ("mesh", config.certificate, current.expires_at),
                ("mesh_ca", config.ca, current.ca_expires_at),
            ):
                family.add_metric([name, str(path)], ends_at.timestamp())
        if self._for_clients is not None:
            path, ends_at = self._for_clients
            family.add_metric(["clients", str(path)], ends_at.timestamp())
        if family.samples:
            yield family
