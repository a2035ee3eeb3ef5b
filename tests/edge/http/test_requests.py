"""What becomes of fields that an API here does not have: the table, and the same on all routes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import EmptyPromptError, InvalidRequestError
from outrider.sampling.grammar import JSON_OBJECT, MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from services.edge.http import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    responses,
    structures,
)
from services.edge.http.api import ChatApi, PlannedReply
from services.edge.http.fields import FIELDS, FORMAT, Door, Field, Outcome
from services.edge.http.passed_over import PassedOver
from tests.edge.http.asking import USER, asked, planned, refusal
from tools import field_matrix

DOORS: Final[dict[Door, tuple[ChatApi, dict[str, Any]]]] = {
    Door.CHAT: (openai_chat.API, {"model": "small", "messages": [USER]}),
    Door.COMPLETIONS: (openai_completions.API, {"model": "small", "prompt": "hello"}),
    Door.RESPONSES: (responses.API, {"model": "small", "input": "hello"}),
    Door.MESSAGES: (
        anthropic_messages.API,
        {"model": "small", "messages": [USER], "max_tokens": 9},
    ),
}
SCHEMA: Final = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}}
SCHEMA_TEXT: Final = json.dumps(SCHEMA, separators=(",", ":"))
BY_SCHEMA: Final = Grammar(GrammarKind.JSON_SCHEMA, SCHEMA_TEXT)


def plan(door: Door, **fields: Any) -> PlannedReply:
    api, body = DOORS[door]
    return planned(api, body | fields)


def refused(door: Door, **fields: Any) -> InvalidRequestError:
    api, body = DOORS[door]
    return refusal(api, body | fields)


def rows(outcome: Outcome) -> list[Any]:
    return [
        pytest.param(door, it, id=f"{it.name} on {door.name.lower()}")
        for it in FIELDS
        for door in sorted(it.doors)
        if it.outcome is outcome
    ]


def test_no_route_has_two_rows_for_a_field() -> None:
    for door in Door:
        names = [it.name for it in FIELDS if door in it.doors]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(("door", "field"), rows(Outcome.REFUSED))
def test_what_would_change_the_text_is_refused_by_name(door: Door, field: Field) -> None:
    error = refused(door, **{field.name: "ask for it"})
    assert error.metadata["param"] == field.name
    assert error.message.startswith(f"{field.name} is not served here; ")
    for value in (None, *field.neutral):
        assert not plan(door, **{field.name: value}).passed_over.names


@pytest.mark.parametrize(("door", "field"), rows(Outcome.PASSED_OVER))
def test_what_is_passed_over_is_told(door: Door, field: Field) -> None:
    assert plan(door, **{field.name: {"any": "thing"}}).passed_over.names == (field.name,)
    assert not plan(door, **{field.name: None}).passed_over.names


@pytest.mark.parametrize(("door", "field"), rows(Outcome.NO_EFFECT))
def test_what_has_no_effect_is_accepted(door: Door, field: Field) -> None:
    value = {"metadata": {"k": "v"}, "max_tool_calls": 3}.get(field.name, "x")
    reply = plan(door, **{field.name: value})
    assert not reply.passed_over.names
    assert reply.chats[0].sampling == plan(door).chats[0].sampling


STRUCTURES: Final[list[tuple[dict[str, Any], Grammar | None]]] = [
    ({"guided_json": SCHEMA}, BY_SCHEMA),
    ({"guided_json": SCHEMA_TEXT}, BY_SCHEMA),
    ({"guided_json_object": True}, JSON_OBJECT),
    ({"guided_json_object": False}, None),
    ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
    (
        {"guided_choice": ["yes", "no. (at all)"]},
        Grammar(GrammarKind.REGEX, r"yes|no\. \(at all\)"),
    ),
    ({"guided_grammar": 'start: "a"'}, Grammar(GrammarKind.LARK, 'start: "a"')),
    ({"guided_grammar": 'root ::= "a"'}, Grammar(GrammarKind.LARK, 'start: T0\nT0: "a"\n')),
    ({"structured_outputs": {"json": SCHEMA}}, BY_SCHEMA),
    ({"structured_outputs": {"json": SCHEMA_TEXT, "regex": None}}, BY_SCHEMA),
    ({"structured_outputs": {"regex": "a"}}, Grammar(GrammarKind.REGEX, "a")),
    ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.REGEX, "a")),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar(GrammarKind.LARK, 'start: "a"')),
    ({"structured_outputs": {"json_object": True}}, JSON_OBJECT),
    ({"structured_outputs": {}}, None),
    ({"grammar": 'root ::= "a"'}, Grammar(GrammarKind.LARK, 'start: T0\nT0: "a"\n')),
    ({"grammar": ""}, None),
    ({"grammar": {"type": "json", "value": SCHEMA}}, BY_SCHEMA),
    ({"grammar": {"type": "regex", "value": "a"}}, Grammar(GrammarKind.REGEX, "a")),
    ({"json_schema": SCHEMA}, BY_SCHEMA),
    ({"regex": "a"}, Grammar(GrammarKind.REGEX, "a")),
    ({"ebnf": 'root ::= "a"'}, Grammar(GrammarKind.LARK, 'start: T0\nT0: "a"\n')),
    ({"format": "json"}, JSON_OBJECT),
    ({"format": ""}, None),
    ({"format": SCHEMA}, BY_SCHEMA),
    ({"response_format": {"type": "json_object"}}, JSON_OBJECT),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, BY_SCHEMA),
    ({"response_format": {"type": "text"}, "guided_json": SCHEMA}, BY_SCHEMA),
]


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize(("fields", "grammar"), STRUCTURES)
def test_other_servers_words_for_a_structure_mean_the_same_on_every_route(
    door: Door, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    if FORMAT in fields and len(fields) > 1 and door in (Door.RESPONSES, Door.MESSAGES):
        assert refused(door, **fields).http_status == 400
        return
    reply = plan(door, **fields)
    assert reply.chats[0].sampling.grammar == grammar
    assert not reply.passed_over.names
    assert reply.chats[0].digest != plan(door).chats[0].digest or grammar is None


def test_every_field_that_becomes_a_format_is_tried() -> None:
    tried = {name for fields, _ in STRUCTURES for name in fields}
    assert tried == {it.name for it in FIELDS if it.to == FORMAT}


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": {"type": "xml", "value": 1}}, "grammar"),
        ({"format": "yaml"}, "format"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": 5}}, "structured_outputs.choice"),
        ({"options": {"mirostat": 1}}, "mirostat"),
        ({"options": 5}, "options"),
        ({"options": {"seed": 1}, "seed": 2}, "options.seed"),
    ],
)
def test_a_structure_that_is_none_is_refused_by_the_name_that_was_sent(
    door: Door, fields: dict[str, Any], param: str
) -> None:
    assert refused(door, **fields).metadata["param"] == param


def test_choices_that_are_too_long_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def literally(text: str) -> str:
        pytest.fail("is read")

    monkeypatch.setattr(structures, "_literally", literally)
    for choices in (["a" * MAX_GRAMMAR_BYTES, "b"], ["", *"a" * MAX_GRAMMAR_BYTES]):
        error = refused(Door.CHAT, guided_choice=choices)
        assert error.metadata["param"] == "guided_choice" and "more than 65536" in error.message


@pytest.mark.parametrize("door", Door)
def test_two_formats_are_refused(door: Door) -> None:
    own: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    if door is Door.RESPONSES:
        fields: dict[str, Any] = {"text": {"format": own}}
    elif door is Door.MESSAGES:
        fields = {"output_config": {"format": own}}
    else:
        fields = {FORMAT: {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    assert plan(door, **fields).chats[0].sampling.grammar == BY_SCHEMA
    assert refused(door, **fields, guided_regex="a").metadata["param"] == "guided_regex"


@pytest.mark.parametrize("door", Door)
def test_sampling_by_other_names(door: Door) -> None:
    own = {"max_tokens": 9} if door is Door.MESSAGES else {"n_predict": 9}
    reply = plan(
        door, **own, repeat_penalty=1.5, options={"top_k": 3, "num_ctx": 4096, "stop": ["a"]}
    )
    sampling = reply.chats[0].sampling
    assert (sampling.max_tokens, sampling.repetition_penalty) == (9, 1.5)
    assert (sampling.top_k, sampling.stop) == (3, ("a",))
    for name in ("stop", "stop_sequences"):
        assert plan(door, **{name: ["x"]}).chats[0].sampling.stop == ("x",)
    assert plan(door, stop="x").chats[0].sampling.stop == ("x",)
    assert plan(door, logit_bias={"5": 1.5}).chats[0].sampling.logit_bias == {5: 1.5}
    assert plan(door, presence_penalty=1, stop_token_ids=[3]).chats[0].sampling.stop_ids == (3,)
    limit = {"max_output_tokens": 7} if door is Door.RESPONSES else {"max_tokens": 7}
    assert refused(door, **limit, n_predict=5).metadata["param"] == "n_predict"


@pytest.mark.parametrize("door", [Door.CHAT, Door.RESPONSES, Door.MESSAGES])
def test_whether_the_model_thinks_by_another_name(door: Door) -> None:
    for thinks in (True, False):
        options = plan(door, think=thinks).chats[0].template_options
        own = plan(door, enable_thinking=thinks).chats[0].template_options
        assert options == replace(own, thinks_field="think"), "an error names what was sent"
        assert options != plan(door).chats[0].template_options


@pytest.mark.parametrize(
    ("door", "own"),
    [
        (Door.RESPONSES, {"reasoning": {"effort": "low"}}),
        (Door.MESSAGES, {"output_config": {"effort": "low"}}),
    ],
)
def test_how_much_the_model_thinks_by_the_name_of_chat_completions(
    door: Door, own: dict[str, Any]
) -> None:
    options = plan(door, **own).chats[0].template_options
    sent = plan(door, reasoning_effort="low")
    assert sent.chats[0].template_options.effort == options.effort == "low"
    assert sent.passed_over.names == ()
    empty = {name: {"format": None, "summary": None} for name in own}
    beside = plan(door, **empty, reasoning_effort="low").chats[0].template_options
    assert beside == sent.chats[0].template_options, "what has no effort does not count"
    assert refused(door, **own, reasoning_effort="low").metadata["param"] == "reasoning_effort"
    assert refused(door, reasoning_effort="loud").metadata["param"] == "reasoning_effort"
    assert plan(door, **own, reasoning_effort=None).chats[0].template_options == options


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repeat_penalty", -1),
        ("repeat_penalty", "much"),
        ("max_new_tokens", -7),
        ("n_predict", [1]),
        ("stop_sequences", [""]),
        ("stop_sequences", 5),
        ("stop", [""]),
        ("stop", {"a": 1}),
    ],
)
def test_an_error_names_what_was_sent(door: Door, name: str, value: object) -> None:
    api, body = DOORS[door]
    limits = ("max_tokens",) if "_tokens" in name or "predict" in name else ()
    fields = {it: given for it, given in body.items() if it not in limits}
    error = refusal(api, {**fields, name: value})
    assert error.metadata["param"] == name
    assert error.message.startswith(name)


@pytest.mark.parametrize("door", Door)
def test_what_is_missing_is_named(door: Door) -> None:
    api, body = DOORS[door]
    (name,) = {"messages", "prompt", "input"} & body.keys()
    error = refusal(api, {it: given for it, given in body.items() if it != name})
    assert (error.metadata["param"], error.message) == (
        name,
        f"{name} is missing, and has to be given",
    )


@pytest.mark.parametrize("door", Door)
def test_what_has_no_text_is_named(door: Door) -> None:
    api, body = DOORS[door]
    (name,) = {"messages", "prompt", "input"} & body.keys()
    empty = [[], ""] if name != "messages" else [[], [{"role": "user", "content": ""}]]
    for it in empty:
        error = refusal(api, body | {name: it})
        assert isinstance(error, EmptyPromptError)
        assert error.metadata["param"] == name


@pytest.mark.parametrize("door", Door)
def test_a_request_may_leave_the_model_to_the_edge(door: Door) -> None:
    api, body = DOORS[door]
    unnamed = {it: given for it, given in body.items() if it != "model"}
    assert [it.model for it in planned(api, unnamed).chats] == [""]
    assert [it.model for it in planned(api, unnamed | {"model": None}).chats] == [""]


@pytest.mark.parametrize("door", Door)
def test_whose_request_it_is_by_the_name_of_chat_completions(door: Door) -> None:
    assert (plan(door, user="u").user, plan(door, user=None).user) == ("u", "")


@pytest.mark.parametrize("door", Door)
def test_a_field_that_nobody_knows_is_told(door: Door) -> None:
    reply = plan(door, temprature=0, **{"a, b\n": 1})
    assert set(reply.passed_over.names) == {"temprature", "a__b_"}
    assert reply.passed_over.headers["x-outrider-passed-over"].count(", ") == 1
    many = plan(door, **{f"field{number}": 0 for number in range(200)})
    assert len(many.passed_over.names) == 32
    assert plan(door, temprature=None).passed_over.names == (), "null asks for nothing"


def test_small_fields_without_end_are_not_named() -> None:
    api, body = DOORS[Door.CHAT]
    reply = planned(api, body | {f"field{number}": 0 for number in range(5_000)})
    assert reply.passed_over.names == ("unlisted_fields",)


@given(st.dictionaries(st.sampled_from([it.name for it in FIELDS]), st.binary(max_size=12)))
def test_fields_of_any_bytes_are_planned_or_refused(fields: dict[str, bytes]) -> None:
    given_fields = b"".join(b',"%b":%b' % (name.encode(), it) for name, it in fields.items())
    data = b'{"messages":[{"role":"user","content":"x"}]%b}' % given_fields
    try:
        openai_chat.API.plan(asked(data))
    except InvalidRequestError as error:
        assert error.message


def test_names_are_fit_for_a_header() -> None:
    passed_over = PassedOver()
    assert passed_over.headers == {}
    passed_over.add("tools[1]", "wéb\r\nx: y, " + "z" * 100)
    (name,) = passed_over.names
    assert name.isascii() and name.isprintable() and "," not in name and len(name) == 64


def test_the_guide_has_the_matrix() -> None:
    page = field_matrix.GUIDE.read_text("utf-8")
    assert field_matrix.written(page) == page, "run python -m tools.field_matrix"
    for door in Door:
        assert f"`{door}`" in page


SET: Final = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
WHERE: Final = "the schema's uniqueItems at #/properties/a/uniqueItems cannot be enforced"


def by_schema(door: Door, schema: Any, *, strict: bool) -> dict[str, Any]:
    """Fields that ask for a reply by the schema, as each API writes them."""
    if door is Door.RESPONSES:
        named = {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}
        return {"text": {"format": named}}
    if door is Door.MESSAGES:
        named = {"type": "json_schema", "schema": schema, "strict": strict}
        return {"output_config": {"format": named}}
    named = {"name": "n", "schema": schema, "strict": strict}
    return {FORMAT: {"type": "json_schema", "json_schema": named}}


@pytest.mark.parametrize("door", Door)
def test_what_cannot_be_enforced_is_refused_under_strict_and_told_otherwise(door: Door) -> None:
    error = refused(door, **by_schema(door, SET, strict=True))
    assert WHERE in error.message
    reply = plan(door, **by_schema(door, SET, strict=False))
    (name,) = reply.passed_over.names
    assert name.endswith(":uniqueItems")
    grammar = reply.chats[0].sampling.grammar
    assert grammar is not None and "uniqueItems" not in grammar.text
    assert not plan(door, **by_schema(door, SCHEMA, strict=True)).passed_over.names


@pytest.mark.parametrize("door", [Door.CHAT, Door.RESPONSES])
def test_a_strict_tool_that_has_to_be_called_is_enforced_or_refused(door: Door) -> None:
    function = {"name": "f", "parameters": SET, "strict": True}
    tool = {"type": "function", **function}
    if door is Door.CHAT:
        tool = {"type": "function", "function": function}
    error = refused(door, tools=[tool], tool_choice="required")
    assert WHERE in error.message and error.metadata["param"].startswith("tools[0].")
    assert plan(door, tools=[tool], tool_choice="auto").chats[0].tools
