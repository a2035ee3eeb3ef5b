"""Configuration of a turn engine behind a server that speaks OpenAI's API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from outrider.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from outrider.errors import ConfigError

ServerKind: TypeAlias = Literal["auto", "vllm"]


@dataclass(frozen=True, slots=True)
class OpenAiServerOptions:
    """Settings of the engine openai-server, table `[inference.server]`. Raises ConfigError at
    construction."""

    url: str = ""
    """Where the server is: http://host:port or https://host:port, and a path if /v1 is below
    one."""
    model: str = ""
    """Its name of the model; empty: the only one that it serves. Its vocabulary must be the one of
    the replica's model."""
    kind: str = "auto"
    """vllm: it obeys the fields that vLLM adds to the API, cache_salt above all; auto: it has to
    show by its metrics that it is vLLM."""
    key_file: Path | None = None
    """Holds the server's API key; unset: it wants none."""
    ca: Path | None = None
    """Certificates that verify the server's, in PEM; unset: the system's."""
    max_sessions: PositiveInt = 64
    """Replies that it is asked for at once; further sessions wait in the replica."""
    max_context_tokens: NonNegativeInt = 0
    """Most tokens of prompt and reply together; 0: what the server says."""
    connect_timeout_s: PositiveFloat = 5.0
    """Time for a connection, and for an answer to a question about its load."""
    start_timeout_s: PositiveFloat = 600.0
    """Time that the server gets to load its model before the replica gives up."""
    silence_timeout_s: PositiveFloat = 60.0
    """Time without a token after which a reply counts as lost, from its first one on."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ServerKind):
            raise ConfigError(
                f"server.kind is {self.kind!r}; use {', '.join(get_args(ServerKind))}"
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError("server.url has to begin with http:// or https://")
