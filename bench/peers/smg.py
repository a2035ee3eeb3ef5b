"""SMG, the Shepherd Model Gateway (formerly SGLang's router), with its own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.peers.installing import HOME, from_index
from outrider.testing import free_tcp_port

PEER: Final = from_index("smg", "1.13.0", "smg==1.13.0", program="bin/smg")


def command(port: int, workers: Sequence[str], policy: str = "") -> tuple[str, ...]:
    """That serves at `port` in front of workers at these URLs; "": its own policy."""
    own = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers)
    quiet = ("--log-level", "error", "--prometheus-port", str(free_tcp_port()))
    chosen = ("--policy", policy) if policy else ()
    return (str(HOME / "smg" / "bin" / "smg"), "launch", *own, *chosen, *quiet)
