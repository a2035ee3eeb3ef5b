"""Adapts chats to how a model writes tool calls and reasoning. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.errors import InvalidRequestError
from outrider.models.template_variables import continues
from outrider.models.tools import AUTO, NONE, REQUIRED, tool_name
from outrider.reply_parsing.formats import ReplyFormat, ends_in
from outrider.reply_parsing.grammar import call_grammar
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.json_schema import enforceable
from services.edge.session.events import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """How one model calls tools, and marks its reasoning."""

    reply_format: ReplyFormat
    """Without a syntax of calls: it calls no tools, or in a way that is not known."""
    shows_tools: bool
    """Whether its chat template shows tool definitions."""
    find_control: Callable[[str], int | None]
    """Id of the control token with a text; None if there is none."""
    begins_in_reasoning: Callable[[str], bool]
    """Whether prompts with these variables of the template end in the tag that begins
    reasoning."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, tool_parser: str) -> ToolCalling:
        """`tool_parser`: as the model's definition has it."""
        return cls(
            vocabulary.reply_format(tool_parser),
            vocabulary.shows_tools,
            vocabulary.find_control,
            vocabulary.begins_in_reasoning,
        )

    def applied(self, request: ChatRequest) -> ChatRequest:
        """The request as this model serves it. Tools are removed if the model is not to see them.
        The text includes the markers by which calls and reasoning are parsed. A grammar is added if
        `tool_choice` requires a call, and if the reply follows a JSON schema, one for calls or such
        an answer; any grammar is that of what follows reasoning. Raises InvalidRequestError for a
        model that calls no tools, and InvalidSamplingError for definitions that make too long a
        grammar."""
        if not request.tools or request.tool_choice == NONE:
            request = replace(request, tools=())
        sampling, reply_format = request.sampling, self.reply_format
        if request.tools:
            reply_format = replace(
                self.check_calls_tools(),
                tool_names=tuple(map(tool_name, request.tools)),
                single_call=not request.parallel_tool_calls,
            )
            if grammar := self.call_grammar(request):
                sampling = replace(sampling, grammar=Grammar(GrammarKind.LARK, grammar))
        elif request.raw_prompt is not None or reply_format.reasoning is None:
            return request
        else:
            reply_format = reply_format.without_calls
        is_open = self._is_open(request)
        reply_format = replace(reply_format, begins_in_reasoning=is_open)
        if any(self.find_control(marker) is not None for marker in reply_format.markers):
            sampling = replace(sampling, special_tokens=True)
        if sampling.grammar is not None or sampling.max_thinking_tokens >= 0:
            sampling = replace(sampling, reasoning_tags=reply_format.reasoning)
        return replace(request, sampling=sampling, reply_format=reply_format)

    def _is_open(self, request: ChatRequest) -> bool:
        """Whether the reply begins within reasoning: for a prompt that the region makes; of its own
        an edge sees the end."""
        tags, variables = self.reply_format.reasoning, request.template_variables
        if continues(variables):
            return tags is not None and ends_in(tags, request.messages[-1].content)
        return self.begins_in_reasoning(variables)

    def check_calls_tools(self) -> ReplyFormat:
        """How replies with calls are read. Raises InvalidRequestError for a model that calls no
        tools."""
        if self.reply_format.call_syntax is None:
            raise InvalidRequestError(self._why_not())
        return self.reply_format

    def call_grammar(self, request: ChatRequest) -> str:
        """The grammar (text in Lark) of a reply that calls a tool, where `tool_choice` asks for it,
        or that calls one or is JSON, where the request's own grammar asks for JSON; "": neither.
        Raises InvalidRequestError for other grammars."""
        choice, asked = request.tool_choice, request.sampling.grammar
        if choice == NONE or (choice == AUTO and asked is None):
            return ""
        wanted = [text for text in request.tools if choice in (AUTO, REQUIRED, tool_name(text))]
        return call_grammar(
            self.reply_format,
            list(map(_enforced, wanted)),
            self.find_control,
            parallel=request.parallel_tool_calls,
            # A reply that has to call a tool has no answer to follow a schema.
            answer=_answer(asked) if choice == AUTO and asked is not None else "",
        )

    def _why_not(self) -> str:
        if not self.shows_tools:
            return (
                "the model's chat template shows no tools; choose a model that was trained to call "
                "them, or send the chat without tools"
            )
        return (
            "the model writes tool calls in a way that is not known here; choose another model, or "
            "name the form as tool_parser in its definition"
        )


def _enforced(tool: str) -> str:
    """A definition whose schema has no keyword that cannot be enforced."""
    found = json.loads(tool)
    if found.get("parameters"):
        found["parameters"], _ = enforceable(found["parameters"])
    return json.dumps(found, ensure_ascii=False)


def _answer(grammar: Grammar) -> str:
    """The JSON schema that a grammar stands for. Raises InvalidRequestError."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return grammar.text
    if grammar.kind is GrammarKind.JSON_OBJECT:
        return '{"type":"object"}'
    raise InvalidRequestError(
        f"a reply that may call tools follows a JSON schema or none; the grammar {grammar.kind} "
        "would apply to all of it; leave the tools out, or set tool_choice to none",
        metadata={"param": "response_format"},
    )
