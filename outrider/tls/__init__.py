"""Mutual TLS between the services: certificates, who their owners are, and what those may call."""

from outrider.tls.config import TlsConfig
from outrider.tls.identity import PeerIdentity, Role
from outrider.tls.live import PLAINTEXT, Tls

__all__ = ["PLAINTEXT", "PeerIdentity", "Role", "Tls", "TlsConfig"]
