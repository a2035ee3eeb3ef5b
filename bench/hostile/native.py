"""What clients send on streams of the native protocol: ordinary chats, and what are none."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.hostile.bystander import NUM_TOKENS
from bench.hostile.quic_client import QuicAttackResult, chat_frame, connected, linger
from bench.hostile.target import SOURCE, Findings, Target, certificate_of, turns
from outrider.client import connect
from outrider.codec.frames import encode_frame
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

_WORDS: Final = ("light", "water", "stone", "green", "morning", "seven", "river", "paper")
_PROMPT_WORDS: Final = 300
"""Each is one token of the default model's vocabulary."""
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)


async def one_honest_client(target: Target, seconds: float, findings: Findings) -> None:
    """One further client that chats as the bystander does, one chat after the other."""
    await _chat_on(target, seconds, findings, 0)


async def three_honest_clients(target: Target, seconds: float, findings: Findings) -> None:
    """Three further clients that chat as the bystander does: with him as many as one address may
    have above the lowest class (`router.admission.max_above_low_per_address`)."""
    await asyncio.gather(*(_chat_on(target, seconds, findings, number) for number in range(1, 4)))


async def malformed_streams(target: Target, seconds: float, findings: Findings) -> None:
    """Lengths that lie, frames without a message, streams that end inside a frame, requests with
    bits turned, noise."""
    chance, good = random.Random(1), chat_frame("What is two plus two?", 2)
    for _ in turns(seconds):
        outcome = QuicAttackResult()
        try:
            async with connected(
                target.address, certificate_of(target), outcome, source=SOURCE
            ) as client:
                for number in range(40):
                    damaged = bytearray(good[2:])
                    damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
                    data = (
                        chance.randbytes(chance.randint(1, 2000)),
                        b"\xff\xff\xff\xff\x7f" + good,
                        b"\x00" + good,
                        good[: chance.randrange(1, len(good))],
                        encode_frame(bytes(damaged)),
                        b"\x80" * chance.randint(1, 12),
                    )[chance.randrange(6)]
                    client.quic.send_stream_data(4 * number, data, chance.random() < 0.7)
                    findings.count("streams")
                client.transmit()
                await linger(client, 0.2)
        except _REFUSED as error:
            findings.count(f"refused: {type(error).__name__}")
            await asyncio.sleep(0.1)
        for reason, times in outcome.closed.items():
            findings.count(f"closed: {reason}", times)


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
