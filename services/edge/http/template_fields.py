"""What requests say of the model's chat template and of its thinking, common to all APIs (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import InvalidRequestError
from outrider.models.template_variables import check_variables
from services.edge.http.openai_errors import refused
from services.edge.session.template_options import EFFORTS, TemplateOptions


def template_options(
    chat_template_kwargs: Mapping[str, Any] | None,
    names: Mapping[str, str],
    *,
    thinks: bool | None = None,
    effort: str | None = None,
) -> TemplateOptions:
    """TemplateOptions of a request's fields, None where it has none; `names`: as in ReadRequest.
    Raises InvalidRequestError."""
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
    )
