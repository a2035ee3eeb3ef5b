"""Installing the peers that benches compare with, each once, with what it takes said before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from bench.peers import dynamo, llamacpp, smg


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer that is not installed with Outrider itself."""

    name: str
    minutes: float
    """What installing it took on two cores."""
    installed: Callable[[], bool]
    install: Callable[[], None]


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "llamacpp", 20.0, llamacpp.installed,
            partial(llamacpp.install, len(os.sched_getaffinity(0))),
        ),
        Peer("smg", 1.0, smg.installed, smg.install),
        Peer("dynamo", 3.0, dynamo.installed, dynamo.install),
    )
}  # fmt: skip
"""By the names that `bench.harness.benches` has for them. The OpenVINO pipeline comes with
Outrider's own engine."""


def install(names: Iterable[str], peers: dict[str, Peer] = PEERS) -> list[str]:
    """Install those that are missing; returns the names of those that could not be."""
    failed = []
    for name in names:
        peer = peers[name]
        if peer.installed():
            continue
        print(f"installing {name}: about {peer.minutes:.0f} min", file=sys.stderr, flush=True)
        began_at = time.monotonic()
        try:
            peer.install()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{name} could not be installed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        minutes = (time.monotonic() - began_at) / 60
        print(f"installed {name} in {minutes:.1f} min", file=sys.stderr, flush=True)
    return failed
