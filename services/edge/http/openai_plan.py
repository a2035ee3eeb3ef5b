"""From a request of the OpenAI API to its chats and the writer of their reply, for chats and
completions alike (pure): each prompt has `n` choices, and each choice is a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.sampling.params import SamplingParams
from services.edge.http.api import ApiRequest, PlannedReply
from services.edge.http.openai_reply import Choice, OpenAiWriter, Shape
from services.edge.http.openai_sampling import (
    SamplingFields,
    chat_request,
    check_stream_options,
    digest_of,
    first_seed,
    num_choices,
    read_positions,
    returns_metrics,
    seed_of,
)
from services.edge.http.passed_over import PassedOver
from services.edge.http.sse import beginning_of
from services.edge.session.events import ChatRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one or more choices."""

    put_into: Callable[[ChatRequest], ChatRequest]
    """A chat about this, of one that is about nothing yet."""
    echo: str = ""
    """Text put in front of each choice's own."""


def plan_choices(
    api: str,
    fields: SamplingFields,
    asked: ApiRequest,
    shape: Shape,
    sampling: SamplingParams,
    prompts: Sequence[Prompt],
    *,
    is_chat: bool = False,
    has_tools: bool = False,
    user: str = "",
    passed_over: PassedOver,
) -> PlannedReply:
    """The chats that answer a request, and their writer. `api`: name of the API; `sampling`: the
    request's sampling without its seed; `is_chat`: whether a reply may have calls or reasoning,
    `has_tools`: whether it may have calls. Raises InvalidRequestError."""
    options = check_stream_options(fields)
    has_metrics = returns_metrics(fields.return_metrics, asked)
    count = num_choices(fields, len(prompts), asked.max_choices)
    total = count * len(prompts)
    is_streamed = bool(fields.stream)
    had = read_positions(asked, total, is_streamed=is_streamed)
    digest = digest_of(api, fields)
    first = first_seed(fields, asked, digest)
    # The choices of each prompt have the same seeds: a prompt alone is answered alike.
    seeds = [seed_of(first, index % count) for index in range(total)]
    chats = tuple(
        prompts[index // count].put_into(
            chat_request(
                fields,
                asked,
                index=index,
                digest=digest,
                sampling=replace(sampling, seed=seeds[index]),
                # Where calls and reasoning begin is read in the text before them.
                position=beginning_of(had[index]) if is_chat else had[index],
                # It would be as the model writes it, calls and all.
                provisional=is_streamed and bool(options.provisional) and not has_tools,
            )
        )
        for index in range(total)
    )
    choices = [
        Choice(
            index,
            seeds[index],
            had[index],
            prompts[index // count].echo,
            from_start=is_chat,
            keeps=not is_streamed,
            has_metrics=has_metrics and total > 1,
        )
        for index in range(total)
    ]
    writer = OpenAiWriter(
        shape,
        choices,
        asked.now_s,
        is_streamed=is_streamed,
        includes_usage=bool(options.include_usage),
        has_ids=bool(asked.idempotency_key),
        num_per_prompt=count,
        has_metrics=has_metrics and total == 1,
    )
    return PlannedReply(chats, writer, is_streamed, user, passed_over=passed_over)
