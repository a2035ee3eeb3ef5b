"""ik_llama.cpp, a fork of llama.cpp that is faster on CPUs. Its package answers one request at a
time, greedily."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from bench.harness.load import Setup, System
from bench.peers import ik_llamacpp_worker
from bench.peers.installing import HOME, from_index
from bench.peers.worker import worker
from outrider.models.vocabulary import Vocabulary

PEER: Final = from_index(
    *("ik_llamacpp", "0.1.5", "--only-binary", ":all:", "ik-llama-cpp-python==0.1.5"),
    program="lib/python*/site-packages/ik_llama_cpp",
)


def ik_llama(
    model: Path, vocabulary: Vocabulary, setup: Setup
) -> AbstractAsyncContextManager[System]:
    """Start it on this GGUF."""
    python = HOME / "ik_llamacpp" / "bin" / "python"
    flags = ("--model", str(model), "--threads", str(setup.threads))
    return worker(vocabulary, str(python), ik_llamacpp_worker.__file__, *flags)
