"""What a chat asks of its model's template: variables by name, and whether and how hard it thinks.
Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import InvalidRequestError
from outrider.models.template_variables import (
    check_variables,
    dated,
    read_variables,
    unknown_variable,
)
from services.edge.session.template_options import NO_EFFORT, TemplateOptions

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary
    from services.edge.session.events import ChatRequest

_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables of templates that turn reasoning on and off: Qwen3, SmolLM3, GLM; Granite, DeepSeek."""
_EFFORT: Final = "reasoning_effort"


@dataclass(frozen=True, slots=True)
class TemplateControl:
    """What one model's template can be told."""

    variables: frozenset[str]
    """Names of its variables."""
    thinks: bool
    """Whether the model marks reasoning, so that it is known to think."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TemplateControl:
        """That of a model with this vocabulary."""
        thinks = vocabulary.reply_format().reasoning is not None
        return cls(vocabulary.template_variables, thinks)

    def applied(self, request: ChatRequest, today: str) -> ChatRequest:
        """The request with the variables that it asks for, and with the date, if the template shows
        it: that of the chat's beginning, if it is continued, or `today`. Raises
        InvalidRequestError, which names the field, for what the template has no variable for."""
        if request.raw_prompt is not None:
            return request
        day = request.resume.template_date or today
        return replace(request, template_variables=self.given(request.template_options, day))

    def given(self, options: TemplateOptions, today: str) -> str:
        """The variables for the template. Raises InvalidRequestError."""
        named = read_variables(options.variables)
        for name in named:
            if name not in self.variables:
                raise unknown_variable(name, self.variables)
        derived: dict[str, Any] = {}
        thinks, field = options.thinks, options.thinks_field
        if options.effort and _EFFORT in self.variables:
            derived[_EFFORT] = options.effort
        elif options.effort_field and thinks is None:
            thinks, field = options.effort != NO_EFFORT, options.effort_field
        if thinks is not None:
            derived |= self._switched(thinks, field, is_effort=field == options.effort_field)
        # What is named for the template itself is more exact than what follows from other fields.
        return dated(check_variables(derived | named), self.variables, today)

    def _switched(self, thinks: bool, field: str, *, is_effort: bool) -> dict[str, Any]:
        """The variable that makes the model think, or not. Raises InvalidRequestError if there is
        none, and the model does otherwise without being told."""
        for name in _SWITCHES:
            if name in self.variables:
                return {name: thinks}
        is_met = self.thinks is thinks and not (thinks and is_effort)
        if is_met or (thinks and not field):
            return {}
        wanted = "reasons" if self.thinks else "does not reason"
        raise InvalidRequestError(
            f"{field}: the model {wanted}, and its chat template has no variable to change that; "
            f"leave {field} out, or choose another model",
            metadata={"param": field},
        )
