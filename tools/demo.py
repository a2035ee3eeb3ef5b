"""`make demo`: a two-region mesh on this machine, chats streamed through it, a clean stop."""

from __future__ import annotations

import subprocess
import sys

from outrider.cli.demo.mesh import command, kept_if_failed

MODEL = "smollm2-135m-instruct"
PROMPTS = (
    "Write a Python function that checks whether a number is even.",
    "What is photosynthesis?",
)
"""The default model answers both of them right, greedily. The first reply begins as the draft model
guesses, so it is seen early."""


def outrider(*arguments: str) -> None:
    """Run one command as a user would. Raises CalledProcessError if it fails."""
    print(f"\n$ outrider {' '.join(arguments)}", flush=True)
    subprocess.run(command(*arguments), check=True)


def show(*up: str) -> None:
    """Start a mesh, with these flags of `outrider up` besides, and chat with it. If a chat fails,
    the last lines of all logs are shown. Raises CalledProcessError; the mesh's folder stays then.
    """
    with kept_if_failed() as folder:
        state = ("--state-dir", str(folder))
        outrider("up", "--detach", "--port", "0", "--http-port", "-1", *state, *up)
        try:
            for prompt in PROMPTS:
                outrider("chat", *state, "--max-tokens", "120", "--prompt", prompt)
        except subprocess.CalledProcessError:
            outrider("logs", *state, "--lines", "5")
            raise
        finally:
            outrider("down", *state)


def main() -> int:
    """Run the demo; its exit status."""
    try:
        outrider("models", "pull", MODEL)
        show()
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
