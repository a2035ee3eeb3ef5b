"""References that are no attacks: what ordinary use by others costs a bystander."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from bench.hostile.bystander import NUM_TOKENS
from bench.hostile.raw import connection_from
from bench.hostile.target import Findings, Target
from outrider.client.wire import ChatOptions, request_frame
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

_PROMPT_WORDS: Final = 300
"""Each is one token of the default model's vocabulary."""
_WORDS: Final = ("light", "water", "stone", "green", "morning", "seven", "river", "paper")
_SOURCE: Final = "127.0.9.10"
"""An address of their own: limits per address then leave the bystander his class. One address has
room for four clients without a key (`router.admission.max_above_low_per_address`)."""
_CHAT_TIMEOUT_S: Final = 60.0


async def one_honest_client(target: Target, seconds: float, findings: Findings) -> None:
    """One further client that chats as the bystander does, one chat after the other."""
    await _chat_on(target, seconds, findings, number=0)


async def four_honest_clients(target: Target, seconds: float, findings: Findings) -> None:
    """Four further clients that chat as the bystander does, each on a connection of its own."""
    await asyncio.gather(
        *(_chat_on(target, seconds, findings, number=number) for number in range(1, 5))
    )


def prompt(number: int) -> str:
    """That of client `number`: it shares no beginning with another's."""
    words = random.Random(number).choices(_WORDS, k=_PROMPT_WORDS - 1)
    return " ".join([str(number), *words])


async def _chat_on(target: Target, seconds: float, findings: Findings, *, number: int) -> None:
    end = time.monotonic() + seconds
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    frame = request_frame(
        [Message("user", prompt(number))], ChatOptions(sampling=sampling), ("", "")
    )
    async with connection_from(_SOURCE, target) as connection:
        while time.monotonic() < end:
            stream_id = connection.send(frame, end=True)
            answers = await connection.answer(stream_id, _CHAT_TIMEOUT_S)
            last = answers[-1].WhichOneof("kind") if answers else "nothing"
            if last != "done":
                findings.broken.append(f"an honest client's chat ended with {last}")
                return
            findings.count("chats")
