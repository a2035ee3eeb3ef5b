"""What a chat asks of its model's template: variables by name, and whether and how hard it thinks.
Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from outrider.errors import InvalidRequestError
from outrider.models.template_variables import (
    CONTINUES,
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
        """The request with the variables that it asks for, and with the date if the template shows
        it: that of the chat's beginning if it is continued, otherwise `today`. Where the model
        always thinks, and is not to, its reasoning is ended before its first token. Raises
        InvalidRequestError, which names the field, for what the template has no variable for."""
        if request.raw_prompt is not None:
            return request
        options, sampling = request.template_options, request.sampling
        if self._asks(options)[0] is False and self.thinks and not self._switch:
            sampling = replace(sampling, max_thinking_tokens=0)
        variables = self.given(options, request.resume.template_date or today)
        return replace(request, sampling=sampling, template_variables=variables)

    def given(self, options: TemplateOptions, today: str) -> str:
        """The variables for the template. Raises InvalidRequestError."""
        named = read_variables(options.variables)
        for name in named:
            if name not in self.variables and name != CONTINUES:
                raise unknown_variable(name, self.variables)
        derived: dict[str, Any] = {CONTINUES: True} if options.continues else {}
        if options.effort and _EFFORT in self.variables:
            derived[_EFFORT] = options.effort
        thinks, field = self._asks(options)
        if thinks is not None and self._switch:
            derived[self._switch] = thinks
        elif thinks and field and not (self.thinks and field == options.thinks_field):
            raise InvalidRequestError(
                f"{field}: the model's chat template has no variable for it; leave {field} out, or "
                "choose another model",
                metadata={"param": field},
            )
        # What is named for the template itself is more exact than what follows from other fields.
        return dated(check_variables(derived | named), self.variables, today)

    def _asks(self, options: TemplateOptions) -> tuple[bool | None, str]:
        """Whether the model is to think, and the field that says so."""
        is_switch = options.thinks is not None or _EFFORT in self.variables
        if is_switch or not options.effort_field:
            return options.thinks, options.thinks_field
        return options.effort != NO_EFFORT, options.effort_field

    @property
    def _switch(self) -> str:
        """The variable that makes the model think, or not; "": there is none."""
        return next((name for name in _SWITCHES if name in self.variables), "")
