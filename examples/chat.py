"""Ask a mesh one question, and print the reply as it becomes final.

OUTRIDER_API_KEY=or_... python examples/chat.py HOST PORT CA.pem "Why is the sky blue?"
"""

from __future__ import annotations

import asyncio
import sys

from outrider import client


async def ask(host: str, port: int, ca: str, question: str) -> None:
    """Without a key in the call, the client takes the one of OUTRIDER_API_KEY."""
    async with client.connect(host, port, ca=ca) as mesh:
        sampling = client.SamplingParams(max_tokens=80)
        async with mesh.chat([client.Message("user", question)], sampling=sampling) as chat:
            async for event in chat:
                if isinstance(event, client.Committed):
                    print(event.text, end="", flush=True)
            result = await chat.result()
    print(f"\n{result.usage.completion_tokens} tokens", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
