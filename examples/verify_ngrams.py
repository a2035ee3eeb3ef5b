"""Draft for a mesh's model by looking up what followed the last few tokens before, and print what
the model says.

OUTRIDER_API_KEY=or_... python examples/verify_ngrams.py HOST:HTTP_PORT CA.pem "Count to ten twice."

`-` in place of the certificate: without TLS, as edges serve HTTP on the loopback.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from outrider.verify_client import VerifyClient


class PromptLookup:
    """Copies what followed the last place where the last `size` tokens, or fewer, stood before
    (prompt lookup decoding; Saxena, 2023)."""

    def __init__(self, size: int = 3) -> None:
        self._size = size

    def draft(self, ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """See outrider.verify_client.Drafter."""
        text = list(ids)
        for size in range(min(self._size, len(text) - 1), 0, -1):
            for at in range(len(text) - size - 1, -1, -1):
                if text[at : at + size] == text[-size:]:
                    return text[at + size : at + size + max_tokens]
        return []


async def ask(edge: str, ca: str, question: str) -> None:
    """The key is that of OUTRIDER_API_KEY."""
    key = os.environ.get("OUTRIDER_API_KEY", "")
    where = {"insecure": True} if ca == "-" else {"ca": Path(ca)}
    async with VerifyClient([edge], key=key, **where) as mesh:  # type: ignore[arg-type]
        session = mesh.verify(
            [Message("user", question)], PromptLookup(), sampling=SamplingParams(max_tokens=120)
        )
        async for tokens in session:
            print(tokens.text, end="", flush=True)
    reply = session.reply
    print(
        f"\n{len(reply.ids)} tokens in {reply.num_commits} messages, "
        f"{reply.num_accepted} as drafted, {reply.usage.accepted_edge_tokens} of them verified "
        "in calls of the model",
        file=sys.stderr,
    )


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2], sys.argv[3]))
