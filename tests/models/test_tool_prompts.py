"""Chats with tools: what templates make of them, that it is what transformers makes of them, and
that nobody forges control tokens by way of tools, calls, names and ids."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import EmptyPromptError, InvalidRequestError
from outrider.models.chat import (
    MAX_CHAT_CHARS,
    MAX_TOOL_CALLS,
    Message,
    Segment,
    check_messages,
)
from outrider.models.chat_template import ChatTemplate
from outrider.models.tools import MAX_DEPTH, ToolCall, check_tools, tool_text
from tests.models import tool_templates
from tests.models.tool_templates import (
    CONTROL,
    FAMILIES,
    HERMES,
    LLAMA3,
    MISTRAL,
    PLAIN,
    THINKING,
)

WEATHER = {
    "name": "get_weather",
    "description": 'The weather & what "it" <feels> like: 5°C, it\'s cold.',
    "parameters": {
        "type": "object",
        "required": ["city"],
        "properties": {
            "unit": {"type": "string", "enum": ["°C", "°F"], "default": None},
            "city": {"type": "string", "description": "Name, e.g. Zürich"},
            "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14.5},
        },
    },
}
CLOCK = {"name": "now", "description": "The time.", "parameters": {"type": "object"}}
CALL = ToolCall("call00001", "get_weather", '{"city": "Zürich <b>", "days": 3, "unit": null}')
ASK = Message("user", "Is it cold in Zürich?")
CHAT = (
    ASK,
    Message("assistant", "", (CALL,)),
    Message("tool", '{"t": -3.5}', tool_call_id="call00001"),
    Message("assistant", "Yes."),
    Message("user", "And tomorrow?"),
)


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, CONTROL[source], tool_templates.variables(source))


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def control(segments: list[Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.is_token]


def as_openai_has_it(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The chat as a program would hand it to transformers, arguments as objects."""
    found = []
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn["reasoning_content"] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            turn |= {"tool_call_id": message.tool_call_id, "name": names[message.tool_call_id]}
        found.append(turn)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("system", [(), (Message("system", "Be <b>brief</b>."),)])
@pytest.mark.parametrize("chat", [CHAT[:1], CHAT[:3], CHAT])
def test_a_prompt_with_tools_is_what_transformers_renders(
    family: str, system: tuple[Message, ...], chat: tuple[Message, ...]
) -> None:
    source = FAMILIES[family]
    asked = system + chat
    tools = check_tools([tool_text(WEATHER), tool_text(CLOCK)])
    as_functions = [{"type": "function", "function": tool} for tool in (WEATHER, CLOCK)]
    for texts, dicts in ((tools, as_functions), ((), None)):
        expected = tool_templates.as_transformers_does(source, as_openai_has_it(asked), dicts)
        assert joined(template_of(source).segments(asked, texts)) == expected


def test_reasoning_is_shown_by_templates_that_show_it() -> None:
    thought = Message("assistant", "Hm.", (CALL,), reasoning="I have to look.")
    chat = (ASK, thought, CHAT[2])
    expected = tool_templates.as_transformers_does(THINKING, as_openai_has_it(chat), None)
    assert "<think>\nI have to look.\n</think>" in expected
    assert joined(template_of(THINKING).segments(chat)) == expected


def test_a_template_is_asked_what_it_shows() -> None:
    shown = {name: template_of(source).abilities for name, source in FAMILIES.items()}
    assert all(it.tools and it.calls and not it.begins_in_reasoning for it in shown.values())
    plain = template_of(PLAIN)
    assert not plain.abilities.tools and not plain.abilities.calls
    with pytest.raises(InvalidRequestError, match="shows no tools"):
        plain.segments([ASK], [tool_text(CLOCK)])
    forced = ChatTemplate(
        PLAIN.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"), [], {}
    )
    assert forced.abilities.begins_in_reasoning
    # As that of Hermes 3 for chats with tools, which fails without.
    needs_tools = ChatTemplate(f"{{% for tool in tools %}}{{% endfor %}}{HERMES}", [], {})
    assert needs_tools.abilities.tools and needs_tools.abilities.calls


def test_a_template_that_needs_descriptions_gets_empty_ones() -> None:
    """As gpt-oss's, which joins them to other texts."""
    template = ChatTemplate(
        "{% for tool in tools or [] %}{{ '// ' + tool.function.description + '\n' }}"
        "{{ tool.function | tojson }}{% endfor %}{{ messages[0].content }}",
        [],
        {},
    )
    bare = tool_text({"name": "now", "parameters": {}})
    assert joined(template.segments([ASK], [bare])) == (
        '// \n{"name": "now", "description": "", "parameters": {}}' + ASK.content
    )


def test_a_developer_is_a_system_to_templates_that_know_none() -> None:
    told = [Message("developer", "Be brief."), ASK]
    as_system = [Message("system", "Be brief."), ASK]
    assert joined(template_of(HERMES).segments(told)) == joined(
        template_of(HERMES).segments(as_system)
    )
    knowing = ChatTemplate("{# developer #}{{ messages[0].role }}", [], {})
    assert joined(knowing.segments(told)) == "developer"


# History: what an assistant said before can only be sent again, so no template refuses it.


def rendered(source: str, *messages: Message) -> str:
    return joined(template_of(source).segments([ASK, *messages]))


def test_two_calls_at_once_become_two_messages_where_a_template_wants_that() -> None:
    two = Message("assistant", "Hm.", (CALL, ToolCall("call00002", "now")))
    results = (Message("tool", "5", tool_call_id="call00002"), CHAT[2])
    one_each = (
        Message("assistant", "Hm.", (CALL,)),
        CHAT[2],
        Message("assistant", "", (ToolCall("call00002", "now"),)),
        results[0],
    )
    assert rendered(LLAMA3, two, *results) == rendered(LLAMA3, *one_each)


def test_ids_of_another_server_become_such_as_the_template_wants() -> None:
    def chat(call_id: str) -> tuple[Message, ...]:
        call = Message("assistant", "", (ToolCall(call_id, "now"),))
        return call, Message("tool", "5", tool_call_id=call_id)

    prompts = [rendered(MISTRAL, *chat(it)) for it in ("call00001", "toolu_01" + "x" * 2000, "é b")]
    assert len(set(prompts)) == 3 and len({len(it) for it in prompts}) == 1
    assert rendered(HERMES, *chat("é b")) == rendered(HERMES, *chat("call00001"))


@pytest.mark.parametrize(
    "arguments",
    [
        *('{"city": "Zür', "[]", "3", "{", '{"a": NaN}', '{"a": "\\ud800"}', '"{}"', "look <b>"),
        "[" * 10_000,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_that_were_cut_off_are_shown_as_they_were(family: str, arguments: str) -> None:
    prompt = rendered(
        FAMILIES[family], Message("assistant", "", (replace(CALL, arguments=arguments),))
    )
    assert "get_weather" in prompt
    assert arguments in prompt or json.dumps(arguments, ensure_ascii=False)[1:-1] in prompt


def test_a_template_that_goes_through_the_arguments_gets_an_object() -> None:
    source = HERMES.replace(
        "{{- tool_call.arguments | tojson }}",
        "{%- for key, value in tool_call.arguments | items %}{{ key }}={{ value }};{%- endfor %}",
    )
    template = ChatTemplate(source, CONTROL[HERMES], {})
    cut = Message("assistant", "", (replace(CALL, arguments='{"city": "Zür'),))
    assert 'arguments={"city": "Zür;' in joined(template.segments([ASK, cut]))


@pytest.mark.parametrize("arguments", ['{"city": "Bern"}', '{"city": "Be'])
def test_a_template_without_calls_shows_them_as_text(arguments: str) -> None:
    call = Message("assistant", "I look.", (ToolCall("c", "f", arguments),))
    result = Message("tool", "-3", tool_call_id="c")
    shown = arguments if arguments.endswith("}") else json.dumps(arguments)
    as_text = (
        Message("assistant", f'I look.\n{{"name": "f", "arguments": {shown}}}'),
        Message("user", "Result of f: -3\nAnd now?"),
    )
    chat = (call, result, Message("user", "And now?"))
    assert rendered(PLAIN, *chat) == rendered(PLAIN, *as_text)
    assert rendered(PLAIN, Message("tool", "5")).count("Result: 5") == 1


def test_messages_of_one_role_are_joined_where_a_template_wants_turns() -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}|{% endfor %}"
    )
    strict = ChatTemplate(source, [], {})
    said = [Message("user", "a"), Message("user", "b"), Message("assistant", "c"), ASK]
    assert joined(strict.segments(said)) == f"a\nb|c|{ASK.content}|"
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        strict.segments([Message("assistant", "c"), ASK])


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_no_call_and_no_result_ends_a_conversation(
    call_id: str, name: str, arguments: str, content: str
) -> None:
    call = Message("assistant", content, (ToolCall(call_id, name, arguments), CALL))
    chat = (ASK, call, Message("tool", content, tool_call_id=call_id), ASK)
    check_messages(chat)
    for source in (*FAMILIES.values(), PLAIN):
        harmless = joined(template_of(source).segments([ASK]))
        assert harmless and joined(template_of(source).segments(chat))


FORGERIES = st.lists(
    st.sampled_from(
        [
            *("<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<", "|>", "<tool_call>", "\n"),
            *("system", '"', "\\", "{", "}", "a\U000f0000", "string", "type", "x"),
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)
JSON = st.recursive(
    FORGERIES | st.integers(0, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FORGERIES, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(FORGERIES, JSON, max_size=3)


@given(FORGERIES, OBJECTS, OBJECTS, FORGERIES, FORGERIES)
def test_control_tokens_come_from_the_template_alone(
    description: str, properties: dict[str, Any], arguments: dict[str, Any], name: str, content: str
) -> None:
    tool = {
        "name": "f",
        "description": description,
        "parameters": {"type": "object", "properties": properties},
    }
    call = ToolCall("call00001", "f", json.dumps(arguments))
    chat = (
        Message("user", content, name=name),
        Message("assistant", content, (call,)),
        Message("tool", content, tool_call_id="call00001", name=name),
    )
    harmless = (
        Message("user", "x"),
        Message("assistant", "x", (ToolCall("call00001", "f", "{}"),)),
        Message("tool", "x", tool_call_id="call00001"),
    )
    template = template_of(HERMES)
    segments = template.segments(chat, check_tools([tool_text(tool)]))
    alone = template.segments(harmless, check_tools([tool_text({"name": "f"})]))
    assert control(segments) == control(alone)
    expected = tool_templates.as_transformers_does(
        HERMES,
        [
            {"role": "user", "content": content, "name": name},
            {
                "role": "assistant",
                "content": content,
                "tool_calls": [
                    {"id": "call00001", "function": {"name": "f", "arguments": arguments}}
                ],
            },
            {"role": "tool", "content": content, "tool_call_id": "call00001", "name": name},
        ],
        [{"type": "function", "function": tool}],
    )
    assert joined(segments) == expected


def test_a_token_pieced_together_from_a_tool_and_the_template_is_refused() -> None:
    source = "{{ tools[0].function.description if tools else '' }}end|>{{ messages[0].content }}"
    shown = source + "{{ tools | tojson }}"
    template = ChatTemplate(shown, ["<|im_end|>"], {})
    assert template.abilities.tools
    with pytest.raises(InvalidRequestError, match="would make a control token"):
        template.segments([ASK], [tool_text({"name": "f", "description": "<|im_"})])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_no_user_wrote_is_the_templates(family: str) -> None:
    """Text of the template's own is cached for everybody."""
    template = template_of(FAMILIES[family])
    one = template.segments(CHAT, check_tools([tool_text(WEATHER)]))
    other_call = ToolCall("call00001", "now", '{"0": [7]}')
    other = template.segments(
        (
            Message("user", "99"),
            Message("assistant", "", (other_call,)),
            Message("tool", "42", tool_call_id="call00001"),
            Message("assistant", "7"),
            Message("user", "猫"),
        ),
        check_tools([tool_text({"name": "now", "description": "8"})]),
    )
    own = [
        {s.text for s in segments if s.is_template and not s.is_token} for segments in (one, other)
    ]
    assert own[0] == own[1]
    for text in ("get_weather", "Zürich", "99", "42", "猫", "now"):
        assert not any(text in template_text for template_text in own[0])


# What may be sent.


def tool_of(**changes: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": {"type": "object"}} | changes


def test_a_definition_has_one_text_however_it_is_written() -> None:
    text = tool_text(WEATHER)
    assert json.loads(text) == WEATHER
    assert list(json.loads(text)["parameters"]) == ["type", "required", "properties"]
    backwards = dict(reversed(WEATHER.items()))
    openai = {"type": "function", "function": {**backwards, "strict": True}}
    for same in (text, backwards, openai, json.dumps(openai, indent=3)):
        assert tool_text(same) == text
    assert tool_text({"name": "f", "description": None}) == '{"name":"f"}'


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("[1]", "a tool is a JSON object"),
        ("{", "cannot be read"),
        ('{"name": "f", "parameters": {"a": NaN}}', "cannot be read"),
        ('{"name": "f", "description": "\\ud800"}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (tool_of(name=""), "letters, digits"),
        (tool_of(name="a b"), "letters, digits"),
        (tool_of(name=3), "letters, digits"),
        (tool_of(name="f" * 129), "letters, digits"),
        (tool_of(name="required"), "which is a tool_choice"),
        (tool_of(description=3), "no text"),
        (tool_of(parameters=[]), None),
        (tool_of(parameters=[1]), "no JSON schema"),
        (tool_of(parameters={"type": "string"}), "no object"),
        (tool_of(parameters={"a": float("inf")}), "is no JSON"),
        (tool_of(parameters={"a": "\udfff"}), "is no JSON"),
        (tool_of(parameters=nested(MAX_DEPTH)), None),
        (tool_of(parameters=nested(MAX_DEPTH + 1)), "deep"),
        (tool_of(other=1), "'other'"),
        (tool_of(description="x" * (1 << 18)), "all together"),
        ({"type": "retrieval", "function": {}}, "of this shape"),
        ({"type": "function", "function": []}, "of this shape"),
    ],
)
def test_a_definition_is_refused_with_a_reason(tool: Any, why: str | None) -> None:
    if why is None:
        assert tool_text(tool)
        return
    with pytest.raises(InvalidRequestError, match=why):
        tool_text(tool)


def test_tools_are_bounded_together() -> None:
    tools = [json.dumps(tool_of(name=f"f{number}")) for number in range(129)]
    assert len(check_tools(tools[:128])) == 128
    with pytest.raises(InvalidRequestError, match="129 tools"):
        check_tools(tools)
    with pytest.raises(InvalidRequestError, match="twice"):
        check_tools([tools[0], tools[0]])
    grown = [f'{{"name": "f{n}", "parameters": {{"a": [{"1e15," * 20_000}1]}}}}' for n in range(2)]
    with pytest.raises(InvalidRequestError, match="characters"):
        check_tools(grown)
    long = [json.dumps(tool_of(name=f"f{n}", description="x" * 70_000)) for n in range(4)]
    with pytest.raises(InvalidRequestError, match="characters"):
        check_tools(long)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message("user", "hi", (CALL,)), "only the assistant"),
        (Message("tool", "hi", reasoning="x"), "only the assistant"),
        (Message("user", "hi", tool_call_id="a"), "only a tool's"),
        (Message("assistant", "", (CALL,) * (MAX_TOOL_CALLS + 1)), "at most 128"),
        (Message("assistant", "", (ToolCall("\ud800", "f"),)), "surrogate"),
        (Message("assistant", "", (ToolCall("a", "\ud800"),)), "surrogate"),
        (Message("assistant", "", (ToolCall("a", "f", "\ud800"),)), "surrogate"),
        (Message("assistant", "hi", reasoning="\ud800"), "surrogate"),
        (Message("user", "hi", name="\ud800"), "surrogate"),
        (Message("user", "hi", name="n" * 257), "at most 256"),
        (Message("tool", "hi", tool_call_id="\ud800"), "surrogate"),
        (Message("assistant", "", (ToolCall("a", "f", "x" * MAX_CHAT_CHARS),)), "at most 1048576"),
        (Message("function", "hi"), "not known"),
    ],
)
def test_a_message_is_refused_with_a_reason(message: Message, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        check_messages([message])


def test_a_call_says_something_and_an_empty_result_does_not_alone() -> None:
    check_messages([Message("assistant", "", (CALL,)), Message("tool", "")])
    with pytest.raises(EmptyPromptError):
        check_messages([Message("tool", "", tool_call_id="a")])


def test_no_arguments_are_an_empty_object() -> None:
    chat = [ASK, Message("assistant", "", (ToolCall("call00001", "now", " "),))]
    assert '{"name": "now", "arguments": {}}' in joined(template_of(HERMES).segments(chat))


def test_json_in_a_template_cannot_take_much_room() -> None:
    wide = ChatTemplate("{{ messages | tojson(indent=100000) }}", [], {})
    with pytest.raises(InvalidRequestError, match="too much space"):
        wide.segments([ASK])
