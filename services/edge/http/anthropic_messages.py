"""POST /v1/messages of the Anthropic API (pure).

`anthropic-version` and `anthropic-beta` are ignored: only one version is supported, and changes
that a beta would make are refused by the field that requests them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import InvalidRequestError
from outrider.models.chat import MAX_TOOL_CALLS, Message, check_num_messages
from outrider.models.tools import AUTO, NONE, REQUIRED, ToolCall, check_num_tools
from services.edge.http.anthropic_errors import error_body
from services.edge.http.anthropic_reply import PING, MessageShape
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.http.bodies import null, read_part
from services.edge.http.fields import Door
from services.edge.http.history import arguments_in, result_in
from services.edge.http.openai_errors import not_text, refused
from services.edge.http.openai_messages import check_num_parts
from services.edge.http.openai_sampling import SamplingFields, returns_metrics
from services.edge.http.passed_over import PassedOver
from services.edge.http.requests import ReadRequest, RequestReader
from services.edge.http.response_format import flat_format
from services.edge.http.template_fields import check_continues, template_options
from services.edge.http.text_documents import shown, text_of_data
from services.edge.http.translation import (
    Conversation,
    ExtraFields,
    PartWriter,
    conversation,
    definition_of,
    plan_chat,
)
from services.edge.session.template_options import TemplateOptions

_ROLES: Final = ("user", "assistant", "system", "developer")
_THINKING: Final = ("disabled", "enabled", "adaptive", "between_tools")
_FORMAT: Final = "output_config"
_PART_SEPARATOR: Final = "\n"
"""Separates a user's texts: blocks, and consecutive messages. An assistant's texts are joined
unchanged, without separator."""
_ERROR: Final = "Error: "
"""Put in front of the result of a failed tool, unless it begins so: chat templates have no flag for
errors, and without it the model would take the text for the result."""
_NO_TEXTS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking")
"""Blocks that are served, and not everywhere."""
_MAX_NAME_CHARS: Final = 64


class Source(msgspec.Struct, kw_only=True, gc=False):
    """Contents of a document: of type text, content (blocks) or base64; others are refused."""

    type: str
    media_type: str | None = None
    data: str | None = None
    content: str | list[InputBlock] | None = None


class InputBlock(msgspec.Struct, kw_only=True, gc=False):
    """A block of a message: text, tool_use, tool_result, thinking, and documents whose contents are
    text. An assistant's may be of any type: calls and results of the API's own tools are shown as
    those of others."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw | UnsetType = UNSET
    """A JSON object, raw: it is passed on as text."""
    tool_use_id: str | None = None
    content: msgspec.Raw = msgspec.field(default_factory=null)
    """Of a result: text, or blocks of text; of the API's own tools any JSON."""
    is_error: bool | None = None
    thinking: str | None = None
    source: Source | str | None = None
    """Of a document; the text is that of blocks which are refused."""
    title: str | None = None
    """Of a document, like `context`: shown to the model before it."""
    context: str | None = None


class InputMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of the conversation."""

    role: str
    content: str | list[InputBlock] | None = None


class Metadata(msgspec.Struct, kw_only=True):
    """About the request."""

    user_id: str | None = None
    """Id of the end user, given by the key's owner; the same as `user` in the OpenAI API."""


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model may think before it answers. Clients send it unasked: with a model that
    does not think, enabled and the like have no effect."""

    type: str
    """disabled, or one of enabled, adaptive, between_tools."""
    budget_tokens: int | None = None
    """Most tokens of reasoning, at which it is ended; for `enabled`."""


class Tool(msgspec.Struct, kw_only=True, gc=False):
    """A tool that the model may call."""

    name: str | None = None
    type: str | None = None
    """custom; tools that the API itself defines or runs are passed over."""
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.field(default_factory=null)
    """A JSON schema of type object. Raw, since the order of its properties counts."""


class ToolChoice(msgspec.Struct, kw_only=True):
    """Whether the model calls a tool."""

    type: str
    """auto, any, tool or none."""
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """Format of the reply."""

    effort: str | None = None
    """The template's variable `reasoning_effort`, if it has one; otherwise without effect."""
    format: msgspec.Raw = msgspec.field(default_factory=null)
    """{"type": "json_schema", "schema": {...}}: the text follows the schema; ours: json_object,
    regex, lark."""


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """Asks how many tokens a message's prompt has. What becomes of fields that are not listed is
    told in the guide (docs/guides/fields.md)."""

    model: str | None = None
    messages: list[InputMessage]
    system: str | list[InputBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """As in MessagesRequest."""
    enable_thinking: bool | None = None
    """As in MessagesRequest."""


class MessagesRequest(ExtraFields, kw_only=True):
    """Asks for the next message of a conversation. What becomes of fields that are not listed is
    told in the guide (docs/guides/fields.md)."""

    model: str | None = None
    messages: list[InputMessage]
    max_tokens: int
    system: str | list[InputBlock] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class TokenCount(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    input_tokens: int


_Conversation: TypeAlias = MessagesRequest | CountTokensRequest

_REQUESTS: Final = RequestReader(Door.MESSAGES, MessagesRequest)
COUNTS: Final = RequestReader(Door.MESSAGES, CountTokensRequest, MessagesRequest)
_decode_content: Final = msgspec.json.Decoder(str | list[InputBlock] | None).decode


def plan(asked: ApiRequest) -> PlannedReply:
    """The chat that answers a request. Raises InvalidRequestError."""
    request = _REQUESTS.read(asked.body)
    body = request.body
    said = conversation_of(request)
    fields = SamplingFields(
        model=body.model,
        stream=body.stream,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
    names = dict(request.names)
    thinking = body.thinking
    if thinking is not None and thinking.type == "enabled" and body.max_thinking_tokens is None:
        body = msgspec.structs.replace(body, max_thinking_tokens=thinking.budget_tokens)
        names["max_thinking_tokens"] = "thinking.budget_tokens"
    chat = plan_chat(
        "messages",
        body,
        fields,
        asked,
        said,
        response_format_of(body.output_config),
        passed_over=request.passed_over,
        names=names,
    )
    check_continues(said.template_options, chat.request.sampling.grammar, _FORMAT)
    is_streamed = bool(body.stream)
    thinks = body.thinking is None or body.thinking.type != "disabled"
    writer = PartWriter(
        MessageShape(
            chat.seed,
            shows_thinking=thinks,
            has_metrics=returns_metrics(body.return_metrics, asked),
        ),
        chat.had,
        is_streamed=is_streamed,
        has_ids=bool(asked.idempotency_key),
    )
    user = "" if body.metadata is None else body.metadata.user_id or ""
    return PlannedReply(
        (chat.request,),
        writer,
        is_streamed,
        user,
        keepalive=PING,
        passed_over=request.passed_over,
    )


API: Final = ChatApi(plan, error_body)


def conversation_of(request: ReadRequest[_Conversation]) -> Conversation:
    """The conversation. Raises InvalidRequestError."""
    body = request.body
    if body.thinking is not None and body.thinking.type not in _THINKING:
        raise refused("thinking", f"thinking.type is one of {', '.join(_THINKING)}")
    check_num_messages(len(body.messages))
    messages = messages_of(body.system, body.messages)
    if _is_empty(messages[-1:]):
        messages = messages[:-1]  # the beginning of a reply, of which there is nothing yet
    continues = _check_end(messages, body.thinking)
    choice, parallel = tool_choice_of(body.tool_choice)
    tools = tool_definitions(body.tools or (), request.passed_over)
    options = replace(_template_options(body, request.names), continues=continues)
    return conversation(
        messages, tools, choice, field="messages", parallel=parallel, options=options
    )


def _is_empty(last: Sequence[Message]) -> bool:
    return any(
        it.role == "assistant" and not (it.content or it.tool_calls or it.reasoning) for it in last
    )


def _check_end(messages: Sequence[Message], thinking: Thinking | None) -> bool:
    """Whether the conversation ends with the beginning of a reply, which is continued. Raises
    InvalidRequestError, in that API's words where it has some, for one that cannot be."""
    if not messages or messages[-1].role != "assistant":
        return False
    if messages[-1].tool_calls:
        raise refused("messages", "messages: the conversation ends with calls; send their results")
    content = messages[-1].content
    if content != content.rstrip():
        raise refused(
            "messages", "messages: final assistant content cannot end with trailing whitespace"
        )
    if thinking is not None and thinking.type in ("enabled", "adaptive"):
        raise refused(
            "messages",
            "messages: the conversation ends with the beginning of a reply, before which a model "
            "cannot think; end it with a user's message, or set thinking.type to disabled",
        )
    return True


def _template_options(body: _Conversation, names: Mapping[str, str]) -> TemplateOptions:
    thinking, config = body.thinking, body.output_config
    effort = config.effort if config is not None else None
    thinks = body.enable_thinking
    if thinks is None and thinking is not None:
        thinks = thinking.type != "disabled"
        # What it allows is a permission, which has no effect on a model that does not reason.
        names = {**names, "enable_thinking": "" if thinks else "thinking"}
    options = template_options(body.chat_template_kwargs, names, thinks=thinks, effort=effort)
    # It is about more than reasoning, and clients send it unasked.
    return replace(options, effort_field="")


def messages_of(
    system: str | list[InputBlock] | None, given: Sequence[InputMessage]
) -> tuple[Message, ...]:
    """Messages in the form for chat templates: results of tools are messages of their own, and
    consecutive messages of one role are joined, as in that API. Raises InvalidRequestError."""
    runs: list[list[Message]] = []
    num_calls = 0
    if system:
        runs.append([Message("system", _text("system", system, _block_text))])
    for number, message in enumerate(given):
        for turn in _turns(f"messages.{number}", message):
            num_calls += len(turn.tool_calls)
            if runs and _are_one(runs[-1][0], turn) and num_calls <= MAX_TOOL_CALLS:
                runs[-1].append(turn)
            else:
                runs.append([turn])
                num_calls = len(turn.tool_calls)
    return tuple(map(_joined, runs))


def _turns(where: str, message: InputMessage) -> Iterator[Message]:
    role, content = message.role, message.content or ""
    if role not in _ROLES:
        raise refused(
            f"{where}.role",
            f"{where}.role: {role[:_MAX_NAME_CHARS]!r} is not served; use one of "
            f"{', '.join(_ROLES)}",
        )
    where = f"{where}.content"
    if isinstance(content, str):
        yield Message(role, content)
    elif role == "assistant":
        yield from _assistant(where, content)
    else:
        yield from _said(where, role, content)


def _said(where: str, role: str, content: Sequence[InputBlock]) -> Iterator[Message]:
    check_num_parts(where, len(content))
    texts: list[str] = []
    for number, block in enumerate(content):
        if block.type == "tool_result" and role == "user":
            yield _result(f"{where}.{number}", block)
        else:
            texts.append(_block_text(f"{where}.{number}", block))
    if texts:
        yield Message(role, _PART_SEPARATOR.join(texts))


def _assistant(where: str, content: Sequence[InputBlock]) -> Iterator[Message]:
    """A message of each block; those of the assistant that follow each other are joined later. The
    API's own tools have their results among the assistant's blocks."""
    check_num_parts(where, len(content))
    yield Message("assistant", "")
    for block in content:
        match block.type:
            case "text":
                yield Message("assistant", block.text or "")
            case "thinking":
                yield Message("assistant", "", reasoning=block.thinking or "")
            case "redacted_thinking":
                pass  # of another model, which alone can read it
            case kind if kind.endswith("tool_use"):
                given = null() if isinstance(block.input, UnsetType) else block.input
                call = ToolCall(block.id or "", block.name or "", arguments_in(given) or "{}")
                yield Message("assistant", "", tool_calls=(call,))
            case kind if kind.endswith("tool_result"):
                yield Message(
                    "tool", result_in(block.content), tool_call_id=block.tool_use_id or ""
                )
            case kind:
                yield Message("assistant", block.text or f"[{kind[:_MAX_NAME_CHARS]}]")


def _result(where: str, block: InputBlock) -> Message:
    if not block.tool_use_id:
        raise refused(where, f"{where}: a tool_result has no tool_use_id; say whose result it is")
    content = read_part(_decode_content, f"{where}.content", block.content)
    text = _text(f"{where}.content", content or "", _block_text)
    if block.is_error and not text.lower().startswith(_ERROR[:-2].lower()):
        text = _ERROR + text
    return Message("tool", text, tool_call_id=block.tool_use_id)


def _text(
    where: str, content: str | Sequence[InputBlock], text_of: Callable[[str, InputBlock], str]
) -> str:
    if isinstance(content, str):
        return content
    check_num_parts(where, len(content))
    return _PART_SEPARATOR.join(
        text_of(f"{where}.{number}", block) for number, block in enumerate(content)
    )


def _block_text(where: str, block: InputBlock) -> str:
    if block.type == "document" and isinstance(block.source, Source):
        return shown(_document_text(where, block.source), block.title, block.context)
    return _plain_text(where, block)


def _plain_text(where: str, block: InputBlock) -> str:
    if block.type != "text":
        raise _no_text(where, block)
    return block.text or ""


def _document_text(where: str, source: Source) -> str:
    match source.type:
        case "text":
            return source.data or ""
        case "content":
            # No documents, as in that API: within one another they might be too deep to be read.
            return _text(f"{where}.source.content", source.content or "", _plain_text)
        case "base64":
            return text_of_data(where, "document", source.media_type, source.data)
        case _:
            raise not_text(where, "document")


def _no_text(where: str, block: InputBlock) -> InvalidRequestError:
    if block.type not in _NO_TEXTS:
        return not_text(where, block.type)
    return refused(
        where,
        f"{where}: a block of type {block.type!r} is out of place; an assistant's message has "
        "text, thinking and tool_use, a user's has text, documents and tool_result, others have "
        "text and documents",
    )


def _are_one(first: Message, second: Message) -> bool:
    return first.role == second.role and first.role in ("user", "assistant")


def _joined(run: Sequence[Message]) -> Message:
    """All at once: to join a hundred thousand blocks one by one would hold the event loop."""
    if len(run) == 1:
        return run[0]
    between = "" if run[0].role == "assistant" else _PART_SEPARATOR
    return Message(
        run[0].role,
        between.join(it.content for it in run if it.content),
        tool_calls=tuple(call for it in run for call in it.tool_calls),
        reasoning="".join(it.reasoning for it in run),
    )


def tool_definitions(tools: Sequence[Tool], passed_over: PassedOver) -> list[str]:
    """Tool definitions for outrider.models.tools.check_tools; the API's own are passed over. Raises
    InvalidRequestError for too many."""
    check_num_tools(len(tools))
    made = []
    for number, tool in enumerate(tools):
        if tool.type is not None and tool.type != "custom":
            passed_over.add(f"tools.{number}", tool.type)
        else:
            made.append(definition_of(tool.name, tool.description, tool.input_schema))
    return made


def tool_choice_of(choice: ToolChoice | None) -> tuple[str, bool]:
    """ChatRequest's tool_choice, and whether several calls are allowed. Raises
    InvalidRequestError."""
    if choice is None:
        return AUTO, True
    names = {"auto": AUTO, "any": REQUIRED, "none": NONE, "tool": choice.name or ""}
    name = names.get(choice.type)
    if not name:
        raise refused("tool_choice", "tool_choice is auto, any, none, or tool with a name")
    return name, not choice.disable_parallel_tool_use


def response_format_of(config: OutputConfig | None) -> dict[str, Any]:
    """The equivalent `response_format` of chat completions. Raises InvalidRequestError."""
    return flat_format(null() if config is None else config.format, _FORMAT)
