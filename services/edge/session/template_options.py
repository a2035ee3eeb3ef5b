"""What a request asks of its model's chat template, before the model is known. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_EFFORT: Final = "none"
EFFORTS: Final = (NO_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of a request's reasoning effort."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What a request says; a field at its default says nothing."""

    variables: str = ""
    """As `check_variables` returned them."""
    thinks: bool | None = None
    """Whether the model is to think before it answers."""
    thinks_field: str = ""
    """The request's field that says so; "": it only permits it, so a model that does not think is
    no error."""
    effort: str = ""
    """One of EFFORTS."""
    effort_field: str = ""
    """The request's field with it; "": of a template without such a variable it asks nothing."""
    continues: bool = False
    """Whether the reply continues the last message, which is the assistant's."""


NO_OPTIONS: Final = TemplateOptions()
