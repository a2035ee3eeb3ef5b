"""What is judged."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.models.catalog import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class Target:
    """An API that is up."""

    url: str
    """Ends in /v1."""
    key: str
    """Empty: clients without a key are served."""
    model: str
    engine: str = ""
    """Of its replicas; empty: not known."""

    @property
    def is_default(self) -> bool:
        """Whether it serves the default model. That one's chat template shows no tools; those of
        the other models that are judged do."""
        return self.model == DEFAULT_MODEL.name

    @property
    def option(self) -> str:
        """Of the command line, that names the model."""
        return "" if self.is_default else f" --model {self.model}"

    @property
    def told(self) -> str:
        """Model and engine, for a report."""
        return f"{self.model} (engine {self.engine})" if self.engine else self.model

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.url.removesuffix("/v1")
