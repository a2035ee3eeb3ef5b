"""Tests with a real server are left out where `make vllm` was not run."""

from __future__ import annotations

from bench.peers.vllm import PEER

collect_ignore_glob = [] if PEER.is_installed() else ["test_vllm.py"]
