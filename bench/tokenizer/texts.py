"""Texts of any length, and chats that grow, made of this project's own lines and prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.harness.prompts import load_prompts
from outrider.models.chat import Message

NUM_SYSTEMS = 21
_ROOT = Path(__file__).parents[2]
_FOLDERS = ("outrider", "services", "protos")
"""A record made from other code is of other texts."""
_SUFFIXES = {".py", ".proto"}
_LONGEST_LINE = 400
"""Characters; longer ones are tables in generated code."""


@cache
def lines() -> tuple[str, ...]:
    """Every line of this project's code, comments and docstrings, and every sentence of the bench's
    prompts, in ASCII and each once: some 30,000."""
    files = sorted(
        path for name in _FOLDERS for path in (_ROOT / name).rglob("*") if path.suffix in _SUFFIXES
    )
    texts = [path.read_text("utf-8") for path in files]
    texts += [prompt.text.replace(". ", ".\n") for prompt in load_prompts()]
    found = (
        line.encode("ascii", "ignore").decode().strip()
        for text in texts
        for line in text.split("\n")
    )
    return tuple(dict.fromkeys(line for line in found if 0 < len(line) <= _LONGEST_LINE))


def text_of(num_bytes: int, seed: int) -> str:
    """ASCII, so that characters are bytes. Lines drawn at random: the texts of two seeds share
    single lines and most of their words, as the texts of a language do, but no longer passages."""
    rng = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < num_bytes:
        line = rng.choice(lines())
        parts.append(line)
        size += len(line) + 1
    return "\n".join([*parts, ""])[:num_bytes]


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
