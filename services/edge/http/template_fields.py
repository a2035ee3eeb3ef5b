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
    *,
    thinks: bool | None = None,
    thinks_field: str = "enable_thinking",
    effort: str | None = None,
    effort_field: str = "reasoning_effort",
) -> TemplateOptions:
    """TemplateOptions of a request's fields, None where it has none. Raises
    InvalidRequestError."""
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
