"""Ordinary clients of the native protocol: what they cost a bystander is the yardstick."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.hostile.bystander import NUM_TOKENS
from bench.hostile.target import Findings, Target, certificate_of, turns
from outrider.client import connect
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

_WORDS: Final = ("light", "water", "stone", "green", "morning", "seven", "river", "paper")
_PROMPT_WORDS: Final = 300
"""Each is one token of the default model's vocabulary."""


async def one_honest_client(target: Target, seconds: float, findings: Findings) -> None:
    """One further client that chats as the bystander does, one chat after the other."""
    await _chat_on(target, seconds, findings, 0)


async def three_honest_clients(target: Target, seconds: float, findings: Findings) -> None:
    """Three further clients that chat as the bystander does: with him as many as one address may
    have above the lowest class (`router.admission.max_above_low_per_address`)."""
    await asyncio.gather(*(_chat_on(target, seconds, findings, number) for number in range(1, 4)))


def prompt(number: int) -> str:
    """That of honest client `number`: it shares no beginning with another's."""
    words = random.Random(number).choices(_WORDS, k=_PROMPT_WORDS - 1)
    return " ".join([str(number), *words])


async def _chat_on(target: Target, seconds: float, findings: Findings, number: int) -> None:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    async with connect(*target.address, ca=certificate_of(target)) as client:
        for _ in turns(seconds):
            async with client.chat([Message("user", prompt(number))], sampling=sampling) as chat:
                await chat.result()
            findings.count("chats")
