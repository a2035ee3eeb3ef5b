"""The kernels of GPUs compile for GPUs that are not here, as the engine launches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

LEAST_SHARED_BYTES = 99 << 10
"""Of a program, on the smallest GPUs with bf16 (compute capability 8.6 and 8.9)."""
KERNELS = {"_product", "_expert_product", "_normed", "_attended", "_joined"}


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles_and_fits_the_shared_memory(capability: int) -> None:
    command = [sys.executable, "-m", "tests.engines.torch.compile_kernels", str(capability)]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    shared_bytes = json.loads(done.stdout.splitlines()[-1])
    assert shared_bytes.keys() == KERNELS
    assert all(size <= LEAST_SHARED_BYTES for size in shared_bytes.values()), shared_bytes
