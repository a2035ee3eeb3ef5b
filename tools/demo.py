"""`make demo`: a two-region mesh on this machine, a chat streamed through it, a clean stop."""

from __future__ import annotations

import subprocess
import sys
import tempfile

MODEL = "smollm2-135m-instruct"
PROMPTS = (
    "What is photosynthesis?",
    "Write a Python function that checks whether a number is even.",
)
"""The default model answers both of them right, greedily."""


def outrider(*arguments: str) -> None:
    """Run one command as a user would; a failure ends the demo with its status."""
    print(f"\n$ outrider {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "outrider.cli.main", *arguments], check=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="outrider-demo-") as state:
        try:
            outrider("models", "pull", MODEL)
            outrider("up", "--detach", "--port", "0", "--http-port", "-1", "--state-dir", state)
            try:
                for prompt in PROMPTS:
                    outrider(
                        "chat", "--state-dir", state, "--max-tokens", "120", "--prompt", prompt
                    )
            finally:
                outrider("down", "--state-dir", state)
        except subprocess.CalledProcessError as error:
            return error.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
