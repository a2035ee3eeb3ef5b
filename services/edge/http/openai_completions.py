"""POST /v1/completions of the OpenAI API: text that continues a prompt (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import EmptyPromptError, PromptTooLongError
from outrider.models.chat import MAX_CHAT_CHARS, check_text
from outrider.session.types import TokenLogprobs
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.http.fields import FORMAT, Door
from services.edge.http.openai_errors import error_body, refused
from services.edge.http.openai_logprobs import CompletionLogprobs, completion_count
from services.edge.http.openai_plan import Prompt, plan_choices
from services.edge.http.openai_reply import (
    Choice,
    ChoiceDetails,
    OpenAiUsage,
    Piece,
    Reply,
)
from services.edge.http.openai_sampling import (
    SamplingFields,
    check_num_prompts,
    reply_limit,
    sampling_params,
)
from services.edge.http.reply_metrics import ReplyMetrics
from services.edge.http.requests import RequestReader
from services.edge.http.response_format import grammar_of
from services.edge.session.events import ChatRequest, RawPrompt

_DEFAULT_MAX_TOKENS: Final = 16
"""That API's default."""


class CompletionRequest(SamplingFields, kw_only=True):
    """Asks for text that continues a prompt. What becomes of fields that are not listed is told in
    the guide (docs/guides/fields.md)."""

    prompt: str | list[str | int | list[int]]
    """Text or token ids, one or several. Texts of control tokens become these tokens."""
    add_special_tokens: bool | None = None
    """Whether a text gets the tokens that the model's prompts begin and end with; null: yes."""
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None
    """Return the log probability of each token of the reply, and of this many of the likeliest."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the requested texts, or its new part."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    outrider: ChoiceDetails | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or an event of it where it is streamed."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[CompletionChoice]
    usage: OpenAiUsage | UnsetType | None = UNSET
    metrics: ReplyMetrics | UnsetType = UNSET
    """Of a reply with one choice, if it was to have them; in a stream, in the last object."""


class CompletionShape:
    """How its objects look."""

    prefix = "cmpl-"

    def __init__(self, num_logprobs: int) -> None:
        """`num_logprobs`: as SamplingParams has it."""
        self._num_logprobs = num_logprobs

    def opening(self, reply: Reply, choice: Choice) -> None:
        """Nothing: a text has no opening; see Shape.opening."""

    def piece(self, reply: Reply, choice: Choice, piece: Piece) -> Completion:
        """An object with new text; see Shape.piece."""
        new = CompletionChoice(
            index=choice.index, text=piece.text, logprobs=self._logprobs(choice, piece.logprobs)
        )
        return _completion(reply, [new])

    def ending(self, reply: Reply, choice: Choice) -> Completion:
        """The last object of a choice; see Shape.ending."""
        last = CompletionChoice(
            index=choice.index,
            text=choice.last.text,
            finish_reason=choice.finish_reason,
            outrider=choice.details,
        )
        whole = _completion(reply, [last])
        whole.metrics = UNSET if reply.includes_usage else reply.metrics
        return whole

    def _logprobs(
        self, choice: Choice, entries: Sequence[TokenLogprobs]
    ) -> CompletionLogprobs | None:
        if self._num_logprobs < 0:
            return None
        return choice.offsets.told(entries, with_top=self._num_logprobs > 0)

    def usage(self, reply: Reply, usage: OpenAiUsage) -> Completion:
        """The object with the usage; see Shape.usage."""
        return _completion(reply, [], usage)

    def keep(self, choice: Choice, logprobs: Sequence[TokenLogprobs]) -> None:
        """Keep log probabilities for `body`; see Shape.keep."""
        if self._num_logprobs >= 0:
            choice.offsets.keep(logprobs, with_top=self._num_logprobs > 0)

    def body(self, reply: Reply, choices: Sequence[Choice], usage: OpenAiUsage) -> Completion:
        """The whole reply; see Shape.body."""
        whole = [
            CompletionChoice(
                index=choice.index,
                text=choice.prefix + "".join(it.text for it in choice.content.reader.parts),
                logprobs=choice.offsets.kept or self._logprobs(choice, ()),
                finish_reason=choice.finish_reason,
                outrider=choice.details,
            )
            for choice in choices
        ]
        return _completion(reply, whole, usage)


def _completion(
    reply: Reply, choices: list[CompletionChoice], usage: OpenAiUsage | None = None
) -> Completion:
    return Completion(
        id=reply.reply_id,
        created=reply.created,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=choices,
        usage=reply.no_usage if usage is None else usage,
        metrics=UNSET if usage is None else reply.metrics,
    )


_REQUESTS: Final = RequestReader(Door.COMPLETIONS, CompletionRequest)


def plan(asked: ApiRequest) -> PlannedReply:
    """The chats that answer a request. Raises InvalidRequestError."""
    request = _REQUESTS.read(asked.body)
    body = request.body
    prompts = prompts_of(body.prompt, asked.max_choices)
    _refuse_what_is_not_served(body, prompts)
    num_logprobs = completion_count(body.logprobs)
    max_tokens = reply_limit(body.max_tokens, _DEFAULT_MAX_TOKENS)
    return plan_choices(
        "completion",
        body,
        asked,
        CompletionShape(num_logprobs),
        replace(
            sampling_params(body, max_tokens, request.names),
            grammar=grammar_of(
                body.response_format, request.names.get(FORMAT, FORMAT), request.passed_over
            ),
            num_logprobs=num_logprobs,
        ),
        [Prompt(partial(_about, it, body), _echoed(body, it)) for it in prompts],
        user=body.user or "",
        passed_over=request.passed_over,
    )


API: Final = ChatApi(plan, error_body)


def prompts_of(given: str | list[str | int | list[int]], max_prompts: int) -> list[RawPrompt]:
    """Each prompt, as text or as ids. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [_text(given)]
    if not given:
        raise _empty("prompt is empty; send text or token ids")
    if isinstance(given[0], int):
        return [_ids(given)]
    # Before any is looked at: a body has room for a hundred thousand.
    check_num_prompts(len(given), max_prompts)
    return [_text(it) if isinstance(it, str) else _ids(it) for it in given]


def _empty(message: str) -> EmptyPromptError:
    return EmptyPromptError(message, metadata={"param": "prompt"})


def _text(prompt: str) -> str:
    if not prompt:
        raise _empty("prompt is empty; send at least one character")
    if len(prompt) > MAX_CHAT_CHARS:
        raise PromptTooLongError.of_text("the prompt", len(prompt), MAX_CHAT_CHARS)
    check_text(prompt)
    return prompt


def _ids(prompt: object) -> tuple[int, ...]:
    if not isinstance(prompt, list) or not set(map(type, prompt)) <= {int}:
        raise refused("prompt", "prompt is text, token ids, or a list of either, not a mixture")
    if not prompt:
        raise _empty("prompt has no token ids; send at least one")
    if len(prompt) > MAX_CHAT_CHARS:
        raise refused("prompt", f"a prompt has at most {MAX_CHAT_CHARS} token ids; shorten it")
    if min(prompt) < 0 or max(prompt) >= 2**31:
        raise refused("prompt", "prompt has a number that is no token id")
    return tuple(prompt)


def _about(prompt: RawPrompt, body: CompletionRequest, chat: ChatRequest) -> ChatRequest:
    gets_ends = body.add_special_tokens is not False
    return replace(chat, raw_prompt=prompt, raw_gets_ends=gets_ends)


def _echoed(body: CompletionRequest, prompt: RawPrompt) -> str:
    return prompt if body.echo and isinstance(prompt, str) else ""


def _refuse_what_is_not_served(body: CompletionRequest, prompts: Sequence[RawPrompt]) -> None:
    """Raises InvalidRequestError for fields that would change the reply and cannot be heeded."""
    for name in ("max_thinking_tokens", "thinking_token_budget"):
        if getattr(body, name) is not None:
            raise refused(name, f"{name} is for chats: of a completion all is text")
    if body.best_of not in (None, 1 if body.n is None else body.n):
        raise refused("best_of", "best_of is not served; ask for n choices")
    if body.echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise refused("echo", "echo is for prompts of text; send text, or leave it out")
    if body.echo and body.logprobs is not None:
        raise refused(
            "echo",
            "log probabilities of a prompt are not returned here; leave echo or logprobs out",
        )
