"""LangChain, as its users point it at an API of OpenAI's."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from langchain_openai import ChatOpenAI, OpenAI

from bench.judges.programs.trying import Api, check, try_all

_SCHEMA = {
    "title": "person",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _model(api: Api, **more: Any) -> Any:
    fields = {"base_url": api.url, "api_key": api.key, "model": api.model, "max_tokens": 24}
    return ChatOpenAI(**(fields | more))


def invoke(api: Api) -> str:
    """A whole reply, with what it took."""
    answer = _model(api, temperature=0).invoke([("system", "Be brief."), ("human", "Say hello.")])
    usage = answer.usage_metadata
    check(usage["input_tokens"] > 0 and usage["output_tokens"] > 0, usage)
    return f"{usage['output_tokens']} tokens"


def stream(api: Api) -> str:
    """The same in pieces."""
    model = _model(api, temperature=0, stream_usage=True)
    pieces = list(model.stream("Say hello."))
    text = "".join(piece.content for piece in pieces)
    check(text == model.invoke("Say hello.").content, text)
    check(any(piece.usage_metadata for piece in pieces), "no usage")
    return f"{len(pieces)} pieces, the same text"


def batch(api: Api) -> str:
    """Several at once."""
    answers = asyncio.run(_model(api).abatch([f"Say {number}." for number in range(8)]))
    check(len(answers) == 8, answers)
    return "8 replies"


def stop(api: Api) -> str:
    """A stop string ends a reply and is not in it."""
    said = _model(api, temperature=0).invoke("Count to five.").content
    word = said.split()[1]
    before = _model(api, temperature=0).bind(stop=[word]).invoke("Count to five.").content
    check(before == said.partition(word)[0], before)
    return f"up to {word!r}"


def completion(api: Api) -> str:
    """The older API."""
    model = OpenAI(base_url=api.url, api_key=api.key, model=api.model, max_tokens=8)
    text = model.invoke("Once upon a time")
    check(bool(text), "nothing was said")
    return "text"


def logprobs(api: Api) -> str:
    """Log probabilities."""
    answer = _model(api).bind(logprobs=True, top_logprobs=2).invoke("Say hello.")
    rows = answer.response_metadata["logprobs"]["content"]
    check(bool(rows) and len(rows[0]["top_logprobs"]) == 2, rows)
    return f"of {len(rows)} tokens"


def structured(api: Api) -> str:
    """A reply by a schema."""
    model = _model(api, max_tokens=200).with_structured_output(_SCHEMA, method="json_schema")
    said = model.invoke("Ada is 36 years old.")
    check(set(said) == {"name", "age"} and isinstance(said["age"], int), said)
    return "an object of the schema"


def tools(api: Api) -> str:
    """A call that is asked for."""
    tool = {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 20}},
            "required": ["place"],
        },
    }
    model = _model(api, max_tokens=200).bind_tools([tool], tool_choice="weather")
    calls = model.invoke("How is the weather in Rome?").tool_calls
    check(len(calls) == 1 and calls[0]["name"] == "weather", calls)
    check(isinstance(calls[0]["args"].get("place"), str), calls)
    return "one call, with its argument"


def wrong_key(api: Api) -> str:
    """Refused, as the error that its users catch."""
    try:
        _model(api, api_key="wrong", max_retries=0).invoke("Say hello.")
    except openai.AuthenticationError as error:
        return f"AuthenticationError, {error.code}"
    raise ValueError("it was served")


def too_long(api: Api) -> str:
    """A prompt that does not fit is told as that."""
    try:
        _model(api, max_retries=0).invoke("word " * 50_000)
    except openai.BadRequestError as error:
        check(error.code == "context_length_exceeded", error)
        return str(error.code)
    raise ValueError("it was served")


if __name__ == "__main__":
    try_all(
        {
            "a reply": invoke,
            "a stream": stream,
            "a batch": batch,
            "a stop string": stop,
            "a completion": completion,
            "log probabilities": logprobs,
            "structured output": structured,
            "a tool": tools,
            "a wrong key": wrong_key,
            "a prompt that is too long": too_long,
        }
    )
