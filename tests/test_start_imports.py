"""What a service need not have imported when it starts: each lengthens every start."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINES = ("openvino", "torch", "llguidance")
"""Imported by the thread that loads the model, if it is the one."""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        (
            "services.inference.app",
            (
                *ENGINES,
                "services.inference.embedding.app",
                "services.inference.turn_replica",
                "aioquic",
                "redis",
                "opentelemetry.sdk.trace.export",
            ),
        ),
        ("services.router.app", (*ENGINES, "aioquic", "tokenizers", "jinja2")),
        ("services.tokenizer.app", (*ENGINES, "aioquic")),
        ("services.edge.app", ENGINES),
    ],
)
def test_a_service_imports_only_what_every_start_of_it_needs(
    module: str, unwanted: tuple[str, ...]
) -> None:
    program = f"import sys, {module}; print([it for it in {unwanted!r} if it in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
