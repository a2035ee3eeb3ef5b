"""Long texts as jobs of numbered parts, spread over workers that come and go. Pure."""

from services.tokenizer.jobs.dispatcher import Dispatcher, Figures, Task
from services.tokenizer.jobs.limits import Limits
from services.tokenizer.jobs.parts import PartId

__all__ = ["Dispatcher", "Figures", "Limits", "PartId", "Task"]
