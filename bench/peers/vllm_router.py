"""vLLM's router, a Rust program, with its own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.peers.installing import HOME, from_index
from outrider.testing import free_tcp_port

PEER: Final = from_index("vllm_router", "0.1.17", "vllm-router==0.1.17", program="bin/vllm-router")


def command(port: int, workers: Sequence[str]) -> tuple[str, ...]:
    """That serves at `port` in front of workers at these URLs."""
    own = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers)
    quiet = ("--log-level", "error", "--prometheus-port", str(free_tcp_port()))
    return (str(HOME / "vllm_router" / "bin" / "vllm-router"), *own, *quiet)
