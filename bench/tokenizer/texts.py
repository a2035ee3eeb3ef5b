"""Texts of any length, and chats that grow, made of the shared prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.harness.prompts import load_prompts
from outrider.models.chat import Message

NUM_SYSTEMS = 21


def text_of(num_bytes: int, seed: int) -> str:
    """Distinct for every seed, and ASCII, so that characters are bytes."""
    rng = random.Random(seed)
    prompts = [p.text.encode("ascii", "ignore").decode() for p in load_prompts()]
    words: list[str] = []
    size = 0
    while size <= num_bytes:
        text = rng.choice(prompts)
        words.append(text)
        size += len(text) + 1
    whole = " ".join(words)
    start = rng.randrange(len(whole) - num_bytes + 1)
    return whole[start : start + num_bytes]


def chats(num_requests: int, seed: int = 0) -> Iterator[list[Message]]:
    """Requests as they come: conversations that go on, each sending its history again, under
    system prompts of which some are common (Zipf) and some hold a long instruction. One message
    in five was asked before; one in ten is a document with a question."""
    rng = random.Random(seed)
    prompts = [prompt.text for prompt in load_prompts() if prompt.kind != "document"]
    systems = [
        f"You are assistant {n}. {text_of(200 * (1 + n % 9), n)}" for n in range(NUM_SYSTEMS)
    ]
    weights = [1 / (n + 1) for n in range(NUM_SYSTEMS)]
    open_chats: list[list[Message]] = []
    for number in range(num_requests):
        if open_chats and rng.random() < 0.6:
            chat = open_chats.pop(rng.randrange(len(open_chats)))
            chat = [*chat, Message("assistant", text_of(rng.randint(80, 900), 10**6 + number))]
        else:
            chat = [Message("system", rng.choices(systems, weights)[0])]
        chat.append(Message("user", _asked(rng, prompts, number)))
        yield chat
        if len(chat) < 12:
            open_chats.append(chat)


def _asked(rng: random.Random, prompts: list[str], number: int) -> str:
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(prompts)
    if kind < 0.3:
        return text_of(rng.randint(5_000, 40_000), 2 * 10**6 + number)
    return text_of(rng.randint(40, 600), 3 * 10**6 + number)
