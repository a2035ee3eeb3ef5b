"""Bodies over HTTP that hurt whoever reads them: huge JSON, schemas and grammars that explode. A
valid key lets them in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bench.hostile.http1 import CHAT, REFUSED, answer, ask, ask_each, connection, post
from bench.hostile.target import Findings, Target, crowd

_TOKENIZE = "/tokenize"
_LINE = "The quick brown fox jumps over the lazy dog; 42 words, one line.\n"
_LEAVES_S = 0.5
_NUM_BODIES = 24
_NUM_PARTS = 16
_BODY_S = 1.0
"""Time in which a slow body is sent."""
_PATIENCE_S = 20.0
"""A grammar may be compiled for a while before it is refused or its reply comes."""


def _chat(**fields: Any) -> bytes:
    asked = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2, **fields}
    return json.dumps(asked).encode()


def giant() -> list[bytes]:
    """Arrays, objects and texts of up to the two megabytes that a body may have, and one of
    more."""
    message, small = {"role": "user", "content": "x"}, {str(number): 0 for number in range(150_000)}
    return [
        _chat(response_format={"type": "json_schema", "json_schema": {"schema": small}}),
        _chat(tools=[{"type": "function", "function": {"name": "a"}}] * 30_000),
        _chat(logit_bias={str(token): 1.5 for token in range(100_000)}),
        _chat(stop=["x" * 50] * 20_000),
        _chat(messages=[message] * 40_000),
        _chat(messages=[{"role": "user", "content": "z" * 1_900_000}]),
        _chat(prediction={"type": "content", "content": "w " * 500_000}),
        b"[" + b"0," * 900_000 + b"0]",
        b" " * ((2 << 20) + 1),
    ]


def grammars() -> list[bytes]:
    """Schemas and grammars that refer to themselves, double at each step, count to billions, or
    have patterns that take for ever to match or to compile."""
    doubled: dict[str, Any] = {"d0": {"type": "string"}}
    for step in range(1, 40):
        below = {"$ref": f"#/$defs/d{step - 1}"}
        doubled[f"d{step}"] = {"anyOf": [below, {"type": "array", "items": below}]}
    schemas: list[Any] = [
        *({"type": "string", "pattern": it} for it in ("(a+)+$", "(a{1000}){1000}", "(.*a){30}")),
        {"$ref": "#"},
        {"$defs": doubled, "$ref": "#/$defs/d39"},
        {"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}},
        {"enum": [f"value {number}" for number in range(50_000)]},
        {"type": "array", "minItems": 10**9, "items": {"type": "string"}},
    ]
    larks = ('start: start start | "a"', 'start: ("a"{1,1000}){1,1000}', "start: /a{1,30000}b*/")
    wanted: list[Any] = [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": it}} for it in schemas
    ]
    wanted += [{"type": "lark", "grammar": text} for text in larks]
    return [_chat(response_format=it) for it in wanted]


class Bodies:
    """The attack that sends each of these bodies in turn, to chat completions."""

    def __init__(self, made: Callable[[], list[bytes]]) -> None:
        self.__doc__ = made.__doc__
        self._made = made

    async def __call__(self, target: Target, seconds: float, findings: Findings) -> None:
        cases = [post(CHAT, body, target) for body in self._made()]
        await ask_each(target, seconds, findings, cases, timeout_s=_PATIENCE_S)


def text_of(words: str, num_chars: int) -> str:
    """A text that begins with these words."""
    return (f"{words} " + _LINE * (num_chars // len(_LINE) + 1))[:num_chars]


def _text(words: str, num_chars: int) -> bytes:
    """A body that has text tokenized, with these words first."""
    return json.dumps({"prompt": text_of(words, num_chars)}).encode()


class TextFlood:
    """The attack that has texts tokenized, so many at a time, from so many addresses, by one
    key."""

    def __init__(self, num_addresses: int) -> None:
        from_where = "one address" if num_addresses == 1 else f"{num_addresses} addresses"
        self.__doc__ = (
            f"64 texts of 150 KB at a time, of one key from {from_where}, are to be tokenized, "
            "half of them for clients that leave."
        )
        self._sources = [f"127.0.9.{9 + number}" for number in range(num_addresses)]

    async def __call__(self, target: Target, seconds: float, findings: Findings) -> None:
        async def flood(number: int) -> None:
            data = post(_TOKENIZE, _text(str(number), 150_000), target)
            patience_s = _PATIENCE_S if number % 2 else _LEAVES_S
            source = self._sources[number // 2 % len(self._sources)]
            await ask(target, data, findings, patience_s, source)

        await crowd(seconds, flood, 64)


async def megabyte_texts(target: Target, seconds: float, findings: Findings) -> None:
    """24 texts of a megabyte at a time are to be tokenized, which no context has room for."""

    async def send(number: int) -> None:
        await ask(target, post(_TOKENIZE, _text(str(number), 1 << 20), target), findings, 60.0)

    await crowd(seconds, send, _NUM_BODIES)


async def slow_bodies(target: Target, seconds: float, findings: Findings) -> None:
    """24 bodies of a megabyte come at a time, from one address and each in many parts: those that
    there is memory for are taken whole, whatever else comes beside them."""
    while True:
        bodies = [_slow_body(target, number, findings) for number in range(_NUM_BODIES)]
        taken = await asyncio.gather(*bodies)
        findings.count("bodies taken whole", sum(taken))
        if not sum(taken):
            findings.missed(f"none of {_NUM_BODIES} bodies of a megabyte was taken")
        seconds -= _BODY_S
        if seconds <= 0:
            return


async def _slow_body(target: Target, number: int, findings: Findings) -> bool:
    """Whether a body was taken, rather than refused for want of memory."""
    data = post(_TOKENIZE, _text(f"slow {number}", 1 << 20), target)
    step = len(data) // _NUM_PARTS + 1
    try:
        async with asyncio.timeout(_PATIENCE_S), connection(target) as (reader, writer):
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                await writer.drain()
                await asyncio.sleep(_BODY_S / _NUM_PARTS)
            status = await answer(reader, findings)
    except TimeoutError:
        findings.count("unanswered, connection open")
        return False
    except REFUSED:
        findings.count("closed without an answer")
        return False
    return status not in (429, 503)
