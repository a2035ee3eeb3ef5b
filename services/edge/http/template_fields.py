"""What requests say of the model's chat template and of its thinking, common to all APIs (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import InvalidRequestError
from outrider.models.template_variables import check_variables
from outrider.sampling.grammar import Grammar
from services.edge.http.openai_errors import refused
from services.edge.session.template_options import EFFORTS, TemplateOptions


def template_options(
    chat_template_kwargs: Mapping[str, Any] | None,
    names: Mapping[str, str],
    *,
    thinks: bool | None = None,
    effort: str | None = None,
    continues: bool = False,
) -> TemplateOptions:
    """TemplateOptions of a request's fields, None where it has none; `names`: as in ReadRequest,
    `continues`: as there. Raises InvalidRequestError."""
    thinks_field = names.get("enable_thinking", "enable_thinking")
    effort_field = names.get("reasoning_effort", "reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise refused(effort_field, f"{effort_field} is one of {', '.join(EFFORTS)}")
    try:
        variables = check_variables(chat_template_kwargs or {})
    except InvalidRequestError as error:
        raise refused("chat_template_kwargs", f"chat_template_kwargs: {error.message}") from None
    return TemplateOptions(
        variables,
        thinks,
        "" if thinks is None else thinks_field,
        effort or "",
        effort_field if effort else "",
        continues,
    )


def continues_in(continue_final_message: bool | None, add_generation_prompt: bool | None) -> bool:
    """Whether the reply continues the last message, by vLLM's two fields. Raises
    InvalidRequestError if they contradict each other."""
    continues = bool(continue_final_message)
    if add_generation_prompt is continues:
        raise refused(
            "add_generation_prompt",
            "add_generation_prompt: it is false where continue_final_message is true, and true "
            "elsewhere: a prompt ends with the beginning of the model's message",
        )
    return continues


def check_continues(options: TemplateOptions, grammar: Grammar | None, field: str) -> None:
    """Raises InvalidRequestError for a reply that continues a text and follows a format, whose
    grammar would hold for the rest alone. `field`: the request's field for it."""
    if options.continues and grammar is not None:
        raise refused(
            field,
            f"{field}: a reply that continues the assistant's message follows no format; end the "
            "conversation with a user's message",
        )
