"""Drives a mesh with Python packages that people point at OpenAI's and Anthropic's APIs, as their
documents show it. Called as `python clients.py '{"url": ..., "key": ..., "model": ...}' NAME...`
with the names of cases; writes one line of JSON per case: {"case": NAME, "error": "" or why}."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

ASKED = json.loads(sys.argv[1])
URL, KEY, MODEL = ASKED["url"], ASKED["key"], ASKED["model"]
QUESTION = "What is a river?"
COLD = "Is it cold in Paris?"
LONG = "word " * 5000
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
}
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


def _weather(cities: list[str]) -> Callable[[str], str]:
    def get_weather(city: str) -> str:
        """Of a city."""
        cities.append(city)
        return "-3 degrees"

    return get_weather


@case
def litellm_openai() -> None:
    _litellm({"model": f"openai/{MODEL}", "api_base": f"{URL}/v1"})


@case
def litellm_anthropic() -> None:
    _litellm({"model": f"anthropic/{MODEL}", "api_base": URL})


def _litellm(where: dict[str, Any]) -> None:
    import litellm

    def ask(content: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        fields = {"max_tokens": 16, "temperature": 0, **more}
        return litellm.completion(**where, api_key=KEY, messages=messages, num_retries=0, **fields)

    whole = ask(QUESTION)
    pieces = [it.choices[0].delta.content or "" for it in ask(QUESTION, stream=True)]
    assert len(pieces) > 2 and "".join(pieces) == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
    called = ask(COLD, tools=tools, tool_choice="required", max_tokens=100)
    first = called.choices[0].message.tool_calls[0].function
    assert first.name == "get_weather" and json.loads(first.arguments)["city"]
    try:
        ask(LONG)
    except litellm.ContextWindowExceededError:
        pass
    else:
        raise AssertionError("it fitted")
    try:
        litellm.completion(**where, api_key="none", messages=[{"role": "user", "content": "a"}])
    except litellm.AuthenticationError:
        pass
    else:
        raise AssertionError("it was let in")


@case
def instructor_objects() -> None:
    import instructor
    import openai
    from pydantic import BaseModel, Field

    class River(BaseModel):
        name: str = Field(max_length=12)
        is_long: bool

    with openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            asked = instructor.from_openai(client, mode=mode)
            river = asked.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "A river."}],
                response_model=River,
                max_retries=0,
                max_tokens=200,
                temperature=0,
            )
            assert isinstance(river, River)


@case
def pydantic_ai_openai_chat() -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    _pydantic_ai(OpenAIChatModel(MODEL, provider=OpenAIProvider(f"{URL}/v1", api_key=KEY)))


@case
def pydantic_ai_openai_responses() -> None:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    _pydantic_ai(OpenAIResponsesModel(MODEL, provider=OpenAIProvider(f"{URL}/v1", api_key=KEY)))


@case
def pydantic_ai_anthropic() -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    _pydantic_ai(AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY)))


def _pydantic_ai(model: Any) -> None:
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent, UsageLimitExceeded
    from pydantic_ai.usage import UsageLimits

    class River(BaseModel):
        name: str = Field(max_length=12)
        is_long: bool

    settings: Any = {"max_tokens": 24, "temperature": 0}
    agent = Agent(model, model_settings=settings)
    whole = agent.run_sync(QUESTION).output

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as result:
            return "".join([it async for it in result.stream_text(delta=True)])

    assert whole and asyncio.run(streamed()) == whole
    objects = Agent(model, output_type=River, model_settings={**settings, "max_tokens": 200})
    assert isinstance(objects.run_sync("A river.").output, River)
    cities: list[str] = []
    calling = Agent(model, model_settings={**settings, "max_tokens": 100})
    calling.tool_plain(_weather(cities))
    try:
        calling.run_sync(COLD, usage_limits=UsageLimits(request_limit=2))
    except UsageLimitExceeded:
        pass  # it calls again and again
    assert cities


@case
def llama_index() -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model=MODEL,
        api_base=f"{URL}/v1",
        api_key=KEY,
        is_chat_model=True,
        max_tokens=16,
        temperature=0,
        max_retries=0,
    )
    asked = [ChatMessage(role="user", content=QUESTION)]
    whole = llm.chat(asked).message.content
    pieces = [it.delta or "" for it in llm.stream_chat(asked)]
    assert len(pieces) > 2 and "".join(pieces) == whole


@case
def langchain_anthropic() -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.exceptions import ContextOverflowError

    def model(**more: Any) -> Any:
        fields = {"base_url": URL, "api_key": KEY, "model_name": MODEL, "max_retries": 0}
        return ChatAnthropic(**{**fields, "max_tokens": 24, "temperature": 0, **more})

    whole = model().invoke(QUESTION)
    pieces = [it.text for it in model().stream(QUESTION)]
    assert whole.text and "".join(pieces) == whole.text
    tool = {"name": "get_weather", "description": "Of a city.", "input_schema": CITY}
    calling = model(max_tokens=100).bind_tools([tool], tool_choice="get_weather")
    assert calling.invoke(COLD).tool_calls[0]["name"] == "get_weather"
    try:
        model().invoke(LONG)
    except ContextOverflowError:
        pass
    else:
        raise AssertionError("it fitted")


@case
def openai_agents_chat() -> None:
    _openai_agents("chat_completions")


@case
def openai_agents_responses() -> None:
    _openai_agents("responses")


def _openai_agents(api: Any) -> None:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    agents.set_default_openai_api(api)
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    agents.set_default_openai_client(client, use_for_tracing=False)
    # It takes a reply that is cut off for a failure, and how long one is differs by the CPU.
    sentence = {"guided_regex": r"[A-Za-z ,]{1,200}\."}
    settings = agents.ModelSettings(max_tokens=1000, temperature=0, extra_body=sentence)
    cities: list[str] = []
    plain = agents.Agent(name="a", model=MODEL, model_settings=settings)
    calling = agents.Agent(
        name="b",
        model=MODEL,
        model_settings=agents.ModelSettings(
            max_tokens=100, temperature=0, tool_choice="required", parallel_tool_calls=False
        ),
        tools=[agents.function_tool(_weather(cities))],
        tool_use_behavior="stop_on_first_tool",
    )

    async def run() -> None:
        whole = (await agents.Runner.run(plain, QUESTION)).final_output
        stream = agents.Runner.run_streamed(plain, QUESTION)
        text = ""
        async for event in stream.stream_events():
            if event.type == "raw_response_event" and hasattr(event.data, "delta"):
                text += event.data.delta
        assert whole and text == whole
        assert (await agents.Runner.run(calling, COLD)).final_output == "-3 degrees"
        assert cities == ["Paris"]

    asyncio.run(run())


for name in sys.argv[2:]:
    why = ""
    try:
        CASES[name]()
    except BaseException:
        why = traceback.format_exc()
    print(json.dumps({"case": name, "error": why}), flush=True)
