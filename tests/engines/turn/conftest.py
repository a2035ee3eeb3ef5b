"""Tests with a real server are left out where `make vllm` was not run, and those with vLLM in
process where it is not installed beside Outrider (`.bench-venvs/vllm/bin/python -m pytest`)."""

from __future__ import annotations

import importlib.util

from bench.peers.vllm import PEER

collect_ignore_glob = [
    *([] if PEER.is_installed() else ["test_vllm_server.py"]),
    *([] if importlib.util.find_spec("vllm") else ["test_vllm_installed.py"]),
]
