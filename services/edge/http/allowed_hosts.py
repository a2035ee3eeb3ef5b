"""Names by which clients may ask for an edge (pure). See `outrider.host_names` for the attack.

A request has to ask by one where its client needs no key, and the connection either leads to this
machine's loopback or is not encrypted. A key is nothing that a stranger's page has; and a page that
comes over TLS has shown a certificate for its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from outrider.errors import ConfigError, InvalidRequestError, MisdirectedError
from outrider.host_names import address_of, host_of, is_loopback

_ANY: Final = "*"


class AllowedHosts:
    """The names of one edge."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: without port, `chat.example`; with some, every request has to ask by one of
        them, by an address, or by localhost. `*` alone: none has to. Raises ConfigError for other
        texts."""
        self._names = frozenset(names)
        self._is_any = _ANY in self._names
        if self._is_any and len(self._names) > 1:
            raise ConfigError("http.allowed_hosts: '*' is for all names; leave the others out")
        for name in self._names - {_ANY}:
            if not name or host_of(name) != name or address_of(name) is not None:
                raise ConfigError(
                    f"http.allowed_hosts: {name!r} is no name; write it in lower case, without "
                    "scheme and port: 'chat.example'; addresses and localhost are always allowed"
                )

    def check(
        self, authorities: Sequence[str], *, server: str, is_encrypted: bool, needs_key: bool
    ) -> None:
        """Whether a request with these `Host` headers is for this edge. `server`: the address that
        its connection leads to; `needs_key`: clients without a key are refused. Raises
        MisdirectedError, and InvalidRequestError for several headers."""
        if len(authorities) > 1:
            raise InvalidRequestError("a request has one Host (RFC 9112, section 3.2)")
        if self._is_any or not authorities:
            return  # HTTP/1.0, which browsers do not speak
        is_here = is_loopback(server)
        if not self._names and (needs_key or (is_encrypted and not is_here)):
            return
        host = host_of(authorities[0])
        is_address = address_of(host) is not None and not is_here
        if not (is_loopback(host) or is_address or host in self._names):
            raise MisdirectedError(
                "this edge is not known by that name: ask for its address or localhost, or have "
                "its operator add the name to edge.http.allowed_hosts"
            )
