"""Sources of artifacts: `pypi:`, `file:`, `dir:`, `hf:`, `https:` and `sha256:`."""

from outrider.models.disk.fetch import ArtifactSource
from outrider.models.sources.parse import parse_source

__all__ = ["ArtifactSource", "parse_source"]
