"""LiteLLM, as its users point it at an API of OpenAI's and at one of Anthropic's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm  # type: ignore[import-not-found]

from bench.judges.programs.trying import Api, check, try_all

_HELLO = [{"role": "user", "content": "Say hello."}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 20}},
            "required": ["place"],
        },
    },
}


def _fields(api: Api, **more: Any) -> dict[str, Any]:
    fields = {
        "model": f"openai/{api.model}",
        "api_base": api.url,
        "api_key": api.key,
        "messages": _HELLO,
        "max_tokens": 24,
        "num_retries": 0,
    }
    return fields | more


def reply(api: Api) -> str:
    """A whole reply."""
    answer = litellm.completion(**_fields(api, temperature=0))
    check(answer.usage.completion_tokens > 0, answer)
    return f"{answer.usage.completion_tokens} tokens"


def stream(api: Api) -> str:
    """The same in pieces."""
    whole = litellm.completion(**_fields(api, temperature=0)).choices[0].message.content
    pieces = litellm.completion(**_fields(api, temperature=0, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    check(text == whole, text)
    return "the same text"


def several(api: Api) -> str:
    """Eight at once, two choices each."""

    async def ask() -> list[Any]:
        return await asyncio.gather(*(litellm.acompletion(**_fields(api, n=2)) for _ in range(8)))

    answers = asyncio.run(ask())
    check(all(len(answer.choices) == 2 for answer in answers), answers)
    return "8 replies of 2 choices"


def structured(api: Api) -> str:
    """A reply by a schema."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    }
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": schema, "strict": True},
    }
    answer = litellm.completion(**_fields(api, response_format=wanted, max_tokens=200))
    said = json.loads(answer.choices[0].message.content)
    check(list(said) == ["name"], said)
    return "an object of the schema"


def tools(api: Api) -> str:
    """A call that is asked for."""
    choice = {"type": "function", "function": {"name": "weather"}}
    more = {"tools": [_TOOL], "tool_choice": choice, "max_tokens": 200}
    calls = litellm.completion(**_fields(api, **more)).choices[0].message.tool_calls
    check(len(calls) == 1 and calls[0].function.name == "weather", calls)
    check("place" in json.loads(calls[0].function.arguments), calls)
    return "one call, with its argument"


def anthropic(api: Api) -> str:
    """By the API of Anthropic."""
    base = api.url.removesuffix("/v1")
    answer = litellm.completion(**_fields(api, model=f"anthropic/{api.model}", api_base=base))
    check(answer.usage.completion_tokens > 0, answer)
    return f"{answer.usage.completion_tokens} tokens"


def responses(api: Api) -> str:
    """By the Responses API."""
    answer = litellm.responses(
        model=f"openai/{api.model}",
        api_base=api.url,
        api_key=api.key,
        input="Say hello.",
        max_output_tokens=24,
    )
    check(answer.usage.output_tokens > 0, answer)
    return f"{answer.usage.output_tokens} tokens"


def wrong_key(api: Api) -> str:
    """Refused, as the error that its users catch."""
    try:
        litellm.completion(**_fields(api, api_key="wrong"))
    except litellm.AuthenticationError:
        return "AuthenticationError"
    raise ValueError("it was served")


def unknown_model(api: Api) -> str:
    """Not found, as the error that its users catch."""
    try:
        litellm.completion(**_fields(api, model="openai/no-such-model"))
    except litellm.NotFoundError:
        return "NotFoundError"
    raise ValueError("it was served")


def too_long(api: Api) -> str:
    """A prompt that does not fit is told as that, which its fallbacks look for."""
    words = [{"role": "user", "content": "word " * 50_000}]
    try:
        litellm.completion(**_fields(api, messages=words))
    except litellm.ContextWindowExceededError:
        return "ContextWindowExceededError"
    raise ValueError("it was served")


if __name__ == "__main__":
    litellm.telemetry = False
    try_all(
        {
            "a reply": reply,
            "a stream": stream,
            "eight at once": several,
            "structured output": structured,
            "a tool": tools,
            "Anthropic Messages": anthropic,
            "Responses": responses,
            "a wrong key": wrong_key,
            "an unknown model": unknown_model,
            "a prompt that is too long": too_long,
        }
    )
