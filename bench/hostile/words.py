"""Attacks that try to read what others said: in drafts, counts, replies kept for somebody else."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from contextlib import AbstractAsyncContextManager

from bench.hostile.target import Findings, Target, certificate_of
from outrider.client import Accepted, Client, Committed, Provisional, connect
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

_SECRET = (
    "Patient: Miriam Oakenfold. Ward: seven. Diagnosis: hereditary haemochromatosis. Write her a "
    "letter that begins with 'Dear Miriam Oakenfold'."
)
_GUESSES = (
    "Patient: Miriam Oakenfold. Ward: seven.",
    "Patient: Miriam Oakenfold. Ward: eight.",
    "Patient: Bernard Oakenfold. Ward: seven.",
)
_GREEDY = SamplingParams(max_tokens=40)


async def others_drafts(target: Target, seconds: float, findings: Findings) -> None:
    """After somebody's letters, a stranger asks for something else, and reads what is shown
    early."""
    async with _client(target) as owner, _client(target) as stranger:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            reply = await _reply(owner, _SECRET)
            findings.count("letters")
            # What the model says of itself to either is no secret of the first.
            told = await _shown(stranger, "What is two plus two? Begin with: Dear")
            for word in ("Miriam", "Oakenfold"):
                if word in reply and word in told:
                    findings.strangers_words += 1


async def others_cached_tokens(target: Target, seconds: float, findings: Findings) -> None:
    """Strangers, a new one each time, ask guesses at somebody's prompt, and are told how much of
    each was cached."""
    async with _client(target) as owner:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await _reply(owner, _SECRET)
            cached = []
            for guess in _GUESSES:
                async with _client(target) as stranger:
                    cached.append(await _cached(stranger, f"{guess} {secrets.token_hex(8)}"))
            findings.count("questions", len(cached))
            findings.count("cached tokens told", sum(cached))
            if cached[0] > max(cached[1:]):
                findings.strangers_words += 1


async def others_prompt_by_time(target: Target, seconds: float, findings: Findings) -> None:
    """A stranger asks the very prompt that somebody asked, and others as long, and compares how
    soon the first word comes: one that another's cache answers comes sooner."""
    async with _client(target) as owner, _client(target) as stranger:
        end, sooner, later, number = time.monotonic() + seconds, 0, 0, 0
        while time.monotonic() < end:
            number += 1
            asked = f"Case {number}. " + _SECRET * 8
            other = f"Case {number}. " + _SECRET.replace("Ward: seven", "Ward: eight") * 8
            await _reply(owner, asked)
            first, second = (asked, other) if number % 2 else (other, asked)
            times = {text: await _first_word_s(stranger, text) for text in (first, second)}
            sooner += times[asked] < times[other]
            later += times[asked] > times[other]
        findings.count("compared", sooner + later)
        findings.count("the owner's came sooner", sooner)
        if _chance_of(sooner, sooner + later) < 0.001:
            findings.strangers_words += 1


def _chance_of(successes: int, tries: int) -> float:
    """Of so many heads or more with a fair coin (the sign test)."""
    ways = sum(math.comb(tries, count) for count in range(successes, tries + 1))
    return float(ways / 2**tries)


async def stolen_resume_token(target: Target, seconds: float, findings: Findings) -> None:
    """A stranger has somebody's resume token, and would read the reply or cut its owner off."""
    async with _client(target) as owner, _client(target) as stranger:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = owner.chat([Message("user", _SECRET)], sampling=_GREEDY)
            token = ""
            try:
                async with asked as chat:
                    async for event in chat:
                        if isinstance(event, Accepted) and not token:
                            token = event.resume_token
                            await _try_token(stranger, token, findings)
                    await chat.result()
                findings.count("owner was served")
            except OutriderError as error:
                findings.broken.append(f"the owner of a stolen token was cut off: {error.reason}")
                return
            await _try_token(stranger, token, findings)  # and when it is over
            await _try_token(stranger, secrets.token_hex(16), findings)


async def stolen_idempotency_key(target: Target, seconds: float, findings: Findings) -> None:
    """A stranger sends somebody's idempotency key, with the same request and with another."""
    async with _client(target) as owner, _client(target) as stranger:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key = secrets.token_hex(8)
            asked = owner.chat([Message("user", _SECRET)], sampling=_GREEDY, idempotency_key=key)
            try:
                async with asked as chat:
                    async for event in chat:
                        if isinstance(event, Accepted):
                            await _reuse(stranger, key, "Say nothing.", findings)
                    await chat.result()
                findings.count("owner was served")
            except OutriderError as error:
                findings.broken.append(f"the owner of a stolen key was cut off: {error.reason}")
                return
            await _reuse(stranger, key, "Say nothing.", findings)


async def guessed_keys(target: Target, seconds: float, findings: Findings) -> None:
    """Credentials that are none: nothing is computed for them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ca = certificate_of(target)
        async with connect(target.host, target.port, ca=ca, key=secrets.token_hex(16)) as client:
            for _ in range(20):
                try:
                    await _reply(client, "Let me in.")
                    findings.broken.append("a wrong key was served")
                    return
                except OutriderError as error:
                    findings.count(error.reason)


async def _try_token(stranger: Client, token: str, findings: Findings) -> None:
    try:
        async with asyncio.timeout(5), stranger.resume(token) as chat:
            result = await chat.result()
        if result.text:
            findings.strangers_words += 1
    except (OutriderError, TimeoutError) as error:
        findings.count(f"stranger: {type(error).__name__}")


async def _reuse(stranger: Client, key: str, prompt: str, findings: Findings) -> None:
    try:
        asked = stranger.chat(
            [Message("user", prompt)], sampling=SamplingParams(max_tokens=4), idempotency_key=key
        )
        async with asyncio.timeout(20), asked as chat:
            result = await chat.result()
        if "Miriam" in result.text:
            findings.strangers_words += 1
        findings.count("stranger: served on its own")
    except (OutriderError, TimeoutError) as error:
        # That a key is somebody's is told to nobody else.
        findings.strangers_words += 1
        findings.broken.append(f"a stranger's request was refused: {type(error).__name__}")


async def _reply(client: Client, prompt: str) -> str:
    async with client.chat([Message("user", prompt)], sampling=_GREEDY) as chat:
        return (await chat.result()).text


async def _cached(client: Client, prompt: str) -> int:
    asked = client.chat([Message("user", prompt)], sampling=SamplingParams(max_tokens=1))
    async with asked as chat:
        return (await chat.result()).usage.cached_tokens


async def _first_word_s(client: Client, prompt: str) -> float:
    began = time.monotonic()
    asked = client.chat([Message("user", prompt)], sampling=SamplingParams(max_tokens=1))
    async with asked as chat:
        async for event in chat:
            if isinstance(event, Committed):
                break
    return time.monotonic() - began


async def _shown(client: Client, prompt: str) -> str:
    """All provisional text of a reply."""
    async with client.chat([Message("user", prompt)], sampling=_GREEDY) as chat:
        shown = [event.text async for event in chat if isinstance(event, Provisional)]
    return " ".join(shown)


def _client(target: Target) -> AbstractAsyncContextManager[Client]:
    return connect(target.host, target.port, ca=certificate_of(target))
