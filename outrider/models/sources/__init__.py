"""Where artifacts come from: `pypi:`, `file:`, `hf:` and `https:`."""

from outrider.models.sources.base import Source
from outrider.models.sources.parse import parse_source

__all__ = ["Source", "parse_source"]
