"""The same as chat.py for a program without an event loop, with a wait when a limit says so.

OUTRIDER_API_KEY=or_... python examples/chat_blocking.py HOST PORT CA.pem "Why is the sky blue?"
"""

from __future__ import annotations

import sys
import time

from outrider.client import Message, SamplingParams, connect_blocking
from outrider.errors import OverloadedError


def ask(host: str, port: int, ca: str, question: str) -> str:
    """The whole reply. Raises OutriderError; `retry_delay_ms` says when to come back."""
    with connect_blocking(host, port, ca=ca) as mesh:
        while True:
            sampling = SamplingParams(max_tokens=80)
            try:
                with mesh.chat([Message("user", question)], sampling=sampling) as chat:
                    return chat.result().text
            except OverloadedError as busy:
                if not busy.retry_delay_ms:
                    raise
                time.sleep(busy.retry_delay_ms / 1000)


if __name__ == "__main__":
    print(ask(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
