"""Where peers are to be found, as written in settings. Pure.

host:port            one peer; the name is resolved anew at every attempt to connect
dns:host:port        every address that the name has (A, AAAA): a Kubernetes headless service
srv:_grpc._tcp.host  every host and port that the name's SRV records say (RFC 2782)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.config import check_address
from outrider.errors import ConfigError


class Lookup(Enum):
    """How a target becomes addresses."""

    NONE = ""
    ADDRESSES = "dns"
    SERVICES = "srv"


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of a list of peers."""

    text: str
    """As it was written; names the target in logs and tables."""
    lookup: Lookup
    host: str
    port: int
    """0 where SRV records say it."""


def parse(text: str, where: str) -> Target:
    """Read a target. Raises ConfigError, naming the key `where`."""
    kind, _, rest = text.partition(":")
    if kind == Lookup.SERVICES.value and ":" not in rest:
        if not rest:
            raise ConfigError(f"{where} must be srv:NAME, not {text!r}")
        return Target(text, Lookup.SERVICES, rest, 0)
    lookup = Lookup.NONE
    if kind == Lookup.ADDRESSES.value and ":" in rest:
        lookup = Lookup.ADDRESSES
    else:
        rest = text
    check_address(rest, where)
    host, _, port = rest.rpartition(":")
    return Target(text, lookup, host, int(port))


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
