"""What models make of chats with tools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.models.tools import check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.formats import REASONING_TAGS, CallSyntax, ReplyFormat
from outrider.reply_parsing.parser import read_reply
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind, json_schema
from outrider.sampling.params import SamplingParams
from services.edge.models.tool_calling import ToolCalling
from services.edge.session.events import ChatRequest
from services.inference.grammars.compiler import compile_grammar
from services.inference.grammars.token_table import TokenTable
from tests.models import thinking_templates, tool_templates
from tests.models.tool_templates import HERMES, LLAMA3, MISTRAL, PLAIN

TOOLS = check_tools(['{"name": "f"}', '{"name": "g"}'])


def calling(template: str, tool_parser: str = "") -> ToolCalling:
    return ToolCalling.of(tool_templates.vocabulary_of(template), tool_parser)


def asking(**changes: object) -> ChatRequest:
    request = {"tools": TOOLS, **changes}
    return ChatRequest("r", "m", (Message("user", "hi"),), SamplingParams(), **request)  # type: ignore[arg-type]


def test_a_chat_without_tools_is_as_it_was() -> None:
    for template in (HERMES, PLAIN, MISTRAL):
        assert calling(template).applied(asking(tools=())) == asking(tools=())


@pytest.mark.parametrize(
    ("family", "is_control"), [("qwen3", False), ("r1", False), ("magistral", True)]
)
def test_reasoning_is_read_in_every_chat_of_a_model_that_thinks(
    family: str, is_control: bool
) -> None:
    vocabulary = thinking_templates.vocabulary_of(thinking_templates.FAMILIES[family])
    found = ToolCalling.of(vocabulary, "")
    for request in (asking(tools=()), asking(tool_choice="none")):
        served = found.applied(request)
        assert served.reply_format == ReplyFormat(
            reasoning=REASONING_TAGS[is_control], begins_in_reasoning=family == "r1"
        )
        assert served.sampling == SamplingParams(special_tokens=is_control)
    raw = asking(tools=(), raw_prompt="hi")
    assert found.applied(raw) == raw, "a completion is text"


def test_variables_tell_whether_a_thin_chat_begins_in_reasoning() -> None:
    template = thinking_templates.QWEN3.replace(
        "{{- '<think>\\n\\n</think>\\n\\n' }}",
        "{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}",
    )
    vocabulary = thinking_templates.vocabulary_of(template, like=thinking_templates.QWEN3)
    for variables, begins in (
        ("", True),
        ('{"enable_thinking":false}', False),
        ('{"enable_thinking":true}', True),
        ('{"enable_thinking":"perhaps"}', True),
    ):
        asked = asking(tools=(), template_variables=variables)
        served = ToolCalling.of(vocabulary, "").applied(asked)
        assert served.reply_format is not None
        assert served.reply_format.begins_in_reasoning is begins
        prompt = vocabulary.decode(vocabulary.encode_chat(asked.messages, (), variables))
        assert prompt.endswith("<think>\n") is begins


def test_tools_that_are_not_to_be_called_are_not_shown() -> None:
    for template in (HERMES, PLAIN):
        served = calling(template).applied(asking(tool_choice="none"))
        assert served == asking(tools=(), tool_choice="none")


@pytest.mark.parametrize(
    ("template", "syntax", "special_tokens"),
    [
        (HERMES, CallSyntax.HERMES, False),
        (LLAMA3, CallSyntax.LLAMA3_JSON, True),
        (MISTRAL, CallSyntax.MISTRAL, True),
    ],
)
def test_the_text_has_what_its_calls_are_read_by(
    template: str, syntax: CallSyntax, special_tokens: bool
) -> None:
    served = calling(template).applied(asking(parallel_tool_calls=False))
    assert served.tools == TOOLS
    assert served.reply_format == ReplyFormat(syntax, tool_names=("f", "g"), single_call=True)
    assert served.sampling == SamplingParams(special_tokens=special_tokens)


def test_models_that_call_no_tools_are_refused_with_a_reason() -> None:
    with pytest.raises(InvalidRequestError, match="shows no tools"):
        calling(PLAIN).applied(asking())
    odd = HERMES.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")
    vocabulary = tool_templates.vocabulary_of(HERMES)
    facts = type(vocabulary.facts)(
        **{
            name: getattr(vocabulary.facts, name)
            for name in vocabulary.facts.__dataclass_fields__
            if name != "chat_template"
        },
        chat_template=odd,
    )
    unknown = type(vocabulary)(vocabulary.tokenizer_json, facts)
    with pytest.raises(InvalidRequestError, match="tool_parser"):
        ToolCalling.of(unknown, "").applied(asking())
    named = ToolCalling.of(unknown, "llama3_json").applied(asking())
    assert named.reply_format is not None
    assert named.reply_format.call_syntax is CallSyntax.LLAMA3_JSON


def test_a_call_that_is_asked_for_is_forced_by_a_grammar() -> None:
    model = calling(HERMES)
    for choice in ("auto", "none"):
        assert model.call_grammar(asking(tool_choice=choice)) == ""
    every, one = (model.call_grammar(asking(tool_choice=it)) for it in ("required", "g"))
    assert '"const":"f"' in every and '"const":"g"' in every
    assert '"const":"f"' not in one and '"const":"g"' in one
    marked = calling(MISTRAL).call_grammar(asking(tool_choice="g"))
    assert f"<[{256 + 4}]>" in marked, "the id of [TOOL_CALLS]"


def test_a_chat_that_has_to_call_has_the_grammar_of_calls() -> None:
    model = calling(HERMES)
    for choice in ("required", "g"):
        asked = asking(tool_choice=choice)
        grammar = model.applied(asked).sampling.grammar
        assert grammar == Grammar(GrammarKind.LARK, model.call_grammar(asked))
        own = replace(asked, sampling=SamplingParams(grammar=JSON_OBJECT))
        assert model.applied(own).sampling.grammar == grammar, "there is no answer to follow it"


def test_a_grammar_that_is_no_json_does_not_go_with_calls() -> None:
    for grammar in (Grammar(GrammarKind.REGEX, "a"), Grammar(GrammarKind.LARK, "start: X")):
        asked = replace(asking(), sampling=SamplingParams(grammar=grammar))
        with pytest.raises(InvalidRequestError, match="leave the tools out") as caught:
            calling(HERMES).applied(asked)
        assert caught.value.metadata["param"] == "response_format"
        unasked = replace(asked, tool_choice="none")
        assert calling(HERMES).applied(unasked).sampling.grammar == grammar


def ids_of(vocabulary: Vocabulary, text: str) -> list[int]:
    return [
        token
        for segment in vocabulary.raw_segments(text)
        for token in (
            [vocabulary.token_id(segment.text)]
            if segment.is_token
            else vocabulary.encode(segment.text)
        )
    ]


over_families = pytest.mark.parametrize(
    ("family", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "g", "arguments": {"a": 1}}\n</tool_call>'),
        ("llama3", '{"name": "g", "parameters": {"a": 1}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "g", "arguments": {"a": 1}}]'),
        ("mistral_args", '[TOOL_CALLS]g[ARGS]{"a": 1}'),
    ],
)
ANSWER = json_schema(
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"type": "string"}},
    }
)


@over_families
def test_a_reply_calls_or_answers_by_the_schema_and_does_nothing_else(
    family: str, call: str
) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.FAMILIES[family])
    asked = replace(asking(), sampling=SamplingParams(grammar=ANSWER))
    served = ToolCalling.of(vocabulary, "").applied(asked)
    assert served.sampling.grammar is not None and served.reply_format is not None
    compiled = compile_grammar(TokenTable(vocabulary), served.sampling.grammar)
    answer = '{"city": "<tool_call> in Rome"}'
    for text in (call, answer):
        ids = ids_of(vocabulary, text)
        assert compiled.constraint().num_valid(ids) == len(ids)
    for text in ("I look.", '{"city": 5}', '{"town": "Rome"}'):
        ids = ids_of(vocabulary, text)
        assert compiled.constraint().num_valid(ids) < len(ids)
    assert [it.name for it in read_reply(call, served.reply_format, "r").calls] == ["g"]
    read = read_reply(answer, served.reply_format, "r")
    assert (read.content, read.calls) == (answer, ())


@over_families
def test_the_grammar_lets_each_family_call_and_nothing_else(family: str, call: str) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.FAMILIES[family])
    served = ToolCalling.of(vocabulary, "").applied(asking(tool_choice="g"))
    assert served.sampling.grammar is not None and served.reply_format is not None
    compiled = compile_grammar(TokenTable(vocabulary), served.sampling.grammar)
    ids = ids_of(vocabulary, call)
    assert compiled.constraint().num_valid(ids) == len(ids)
    assert compiled.constraint().num_valid(vocabulary.encode("I look.")) == 0
    read = read_reply(call, served.reply_format, "r")
    assert [(it.name, it.arguments) for it in read.calls] == [("g", '{"a": 1}')]


def test_a_forced_call_needs_no_keyword_that_cannot_be_enforced() -> None:
    parameters = (
        '{"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}, '
        '"by": {"type": "object", "propertyNames": {"type": "string"}}}}'
    )
    tools = check_tools([f'{{"name": "f", "parameters": {parameters}}}'])
    for template in (HERMES, LLAMA3, MISTRAL):
        vocabulary = tool_templates.vocabulary_of(template)
        served = ToolCalling.of(vocabulary, "").applied(asking(tools=tools, tool_choice="f"))
        grammar = served.sampling.grammar
        assert grammar is not None and "uniqueItems" not in grammar.text
        compile_grammar(TokenTable(vocabulary), grammar)
        assert served.tools == tools, "the model is shown all of it"
