"""Bodies over HTTP that hurt whoever reads them: huge JSON, schemas and grammars that explode. A
valid key lets them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bench.hostile.http1 import CHAT, ask, ask_each, post
from bench.hostile.target import Findings, Target, crowd

_TOKENIZE = "/tokenize"
_LINE = "The quick brown fox jumps over the lazy dog; 42 words, one line.\n"
_LEAVES_S = 0.5
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


def _text(words: str, num_bytes: int) -> bytes:
    """A body that has text tokenized, with these words first."""
    return json.dumps({"prompt": (f"{words} " + _LINE * num_bytes)[:num_bytes]}).encode()


async def text_floods(target: Target, seconds: float, findings: Findings) -> None:
    """64 texts of 150 KB at a time are to be tokenized, half of them for clients that leave."""

    async def flood(number: int) -> None:
        data = post(_TOKENIZE, _text(str(number), 150_000), target)
        await ask(target, data, findings, _PATIENCE_S if number % 2 else _LEAVES_S)

    await crowd(seconds, flood, 64)
