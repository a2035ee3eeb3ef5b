"""Tests of the PyTorch engine, left out where `make torch` was not run."""

from __future__ import annotations

import os
from importlib.util import find_spec

# Read when a kernel is defined: without a GPU, Triton's interpreter runs it on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

_NEEDS_TORCH = ["test_engine.py", "test_kernels.py", "test_compilation.py"]
collect_ignore_glob = _NEEDS_TORCH if find_spec("torch") is None else []
