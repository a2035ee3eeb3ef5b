"""What a model makes of a chat with tools. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.errors import InvalidRequestError
from outrider.models.tools import AUTO, NONE, REQUIRED, tool_name
from outrider.reply_parsing.formats import ReplyFormat
from outrider.reply_parsing.grammar import call_grammar
from outrider.sampling.grammar import Grammar, GrammarKind
from services.edge.session.events import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """How one model calls tools."""

    reply_format: ReplyFormat | None
    """None: it does not, or in a way that is not known."""
    shows_tools: bool
    """Whether its chat template tells it of tools."""
    needs_special_tokens: bool
    """Whether its calls are marked by control tokens, whose names the text has to have."""
    find_control: Callable[[str], int | None]
    """The id of the control token of a text; None if there is none."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, tool_parser: str) -> ToolCalling:
        """`tool_parser`: as the model's definition has it."""
        reply_format = vocabulary.reply_format(tool_parser)
        return cls(
            reply_format,
            vocabulary.shows_tools,
            reply_format is not None and vocabulary.needs_special_tokens(reply_format),
            vocabulary.find_control,
        )

    def applied(self, request: ChatRequest) -> ChatRequest:
        """The request as this model serves it: without tools that it is not to be told of;
        otherwise with text that has what its calls are read by, and with the grammar of a call
        where `tool_choice` asks for one. Raises InvalidRequestError for a model that calls no
        tools, and InvalidSamplingError for definitions that make too long a grammar."""
        if not request.tools or request.tool_choice == NONE:
            return replace(request, tools=())
        found = self.reply_format
        if found is None:
            raise InvalidRequestError(self._why_not())
        sampling = request.sampling
        if self.needs_special_tokens:
            sampling = replace(sampling, special_tokens=True)
        if forced := self.forced_grammar(request):
            if sampling.grammar is not None:
                raise InvalidRequestError(
                    f"tool_choice {request.tool_choice[:64]!r} and a grammar both say what the "
                    "reply looks like; send one of them"
                )
            sampling = replace(sampling, grammar=Grammar(GrammarKind.LARK, forced))
        named = replace(
            found,
            tool_names=tuple(map(tool_name, request.tools)),
            single_call=not request.parallel_tool_calls,
        )
        return replace(request, sampling=sampling, reply_format=named)

    def forced_grammar(self, request: ChatRequest) -> str:
        """The grammar (text in Lark) of a reply that calls a tool, where `tool_choice` asks for it;
        "": it does not."""
        if self.reply_format is None or request.tool_choice in (AUTO, NONE):
            return ""
        wanted = [
            text for text in request.tools if request.tool_choice in (REQUIRED, tool_name(text))
        ]
        return call_grammar(
            self.reply_format, wanted, self.find_control, parallel=request.parallel_tool_calls
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
