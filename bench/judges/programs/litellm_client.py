"""What LiteLLM's users try, one thing after the other; a line of JSON for each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

import litellm  # type: ignore[import-not-found]

URL, KEY, MODEL = json.loads(os.environ["OUTRIDER_JUDGED"])
_OBJECT: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}},
    "required": ["name"],
    "additionalProperties": False,
}
_SCHEMA: Final = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": _OBJECT, "strict": True},
}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "person", "description": "Looks somebody up.", "parameters": _OBJECT},
}
_CHOICE: Final = {"type": "function", "function": {"name": "person"}}


def ask(**fields: Any) -> Any:
    """A completion: of OpenAI's API unless the model says another."""
    hello = [{"role": "user", "content": "Say hello."}]
    asked = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "messages": hello}
    limits = {"max_tokens": 24, "num_retries": 0, "temperature": 0}
    return litellm.completion(**{**asked, **limits, **fields})


def stream() -> str:
    """The text of a whole reply, in pieces."""
    text = "".join(piece.choices[0].delta.content or "" for piece in ask(stream=True))
    assert text == ask().choices[0].message.content, text
    return "the same text"


def structured() -> str:
    """A reply by a schema."""
    said = json.loads(ask(response_format=_SCHEMA, max_tokens=200).choices[0].message.content)
    assert list(said) == ["name"], said
    return "an object of the schema"


def tool() -> str:
    """A call that is asked for."""
    answer = ask(tools=[_TOOL], tool_choice=_CHOICE, max_tokens=200)
    (call,) = answer.choices[0].message.tool_calls
    assert "name" in json.loads(call.function.arguments), call
    return "one call, with its argument"


def responses() -> str:
    """By the Responses API."""
    asked = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "input": "Say hello."}
    return told(litellm.responses(**asked, max_output_tokens=24).usage.output_tokens)


def told(num_tokens: int) -> str:
    """That there were some."""
    assert num_tokens > 0
    return f"{num_tokens} tokens"


def refused(error: type[Exception], **fields: Any) -> Callable[[], str]:
    """A request that has to end with the error that its users catch."""

    def attempt() -> str:
        try:
            ask(**fields)
        except error:
            return error.__name__
        raise ValueError("it was served")

    return attempt


TRIES: Final[dict[str, Callable[[], str]]] = {
    "a reply": lambda: told(ask().usage.completion_tokens),
    "a stream": stream,
    "two choices": lambda: f"{len(ask(n=2, temperature=1).choices)} choices",
    "structured output": structured,
    "a tool": tool,
    "Anthropic Messages": lambda: told(
        ask(model=f"anthropic/{MODEL}", api_base=URL.removesuffix("/v1")).usage.completion_tokens
    ),
    "Responses": responses,
    "a wrong key": refused(litellm.AuthenticationError, api_key="wrong"),
    "an unknown model": refused(litellm.NotFoundError, model="openai/no-such-model"),
    "a prompt that is too long": refused(
        litellm.ContextWindowExceededError,
        messages=[{"role": "user", "content": "word " * 50_000}],
    ),
}

if __name__ == "__main__":
    litellm.telemetry = False
    for what, attempt in TRIES.items():
        try:
            row = {"what": what, "result": "passed", "said": attempt()}
        except Exception as error:
            row = {"what": what, "result": "failed", "said": f"{type(error).__name__}: {error}"}
        print(json.dumps(row), flush=True)
