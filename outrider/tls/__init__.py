"""Mutual TLS between the services: certificates, their owners, and what those may call."""

from outrider.tls.certificates import PLAINTEXT, Tls
from outrider.tls.config import TlsConfig
from outrider.tls.identity import PeerIdentity, Role

__all__ = ["PLAINTEXT", "PeerIdentity", "Role", "Tls", "TlsConfig"]
