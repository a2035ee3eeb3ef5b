"""Events of a chat, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from outrider.models.chat import Message
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.models.tools import ToolCall
from outrider.reply_parsing.events import ReplyEvent
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import (
    NO_SPECULATION,
    FinishReason,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The chat's connection was lost, and the client is reconnecting. Provisional text is void;
    final text stays."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The chat continues where it was interrupted: nothing is lost, nothing repeated."""

    edge: str
    pause_ms: float
    """Milliseconds from the interruption to the next event of the chat."""


Event: TypeAlias = (
    Accepted | Provisional | Retracted | Committed | Interrupted | Resumed | ReplyEvent | Done
)
"""A ReplyEvent, of chats with tools alone, is what was read in the final text (a Committed comes
before it): more of the answer or of what the model thinks, a tool call, its arguments."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that an edge serves."""

    name: str
    vocabulary_digest: bytes
    """Empty until the edge has loaded it once."""
    max_context_tokens: int
    """Longest prompt and reply together, in tokens."""
    suggested_sampling: SuggestedSampling | None = None
    """The model's own sampling settings; None if it has none, or if the edge has not loaded it yet.
    Use them with `SamplingParams(**suggested_sampling.values())`."""
    is_suggested_by_definition: bool = False
    """Whether they come from the model's definition, not from its files."""


@dataclass(frozen=True, slots=True)
class TextIds:
    """The token ids of a text."""

    ids: tuple[int, ...]
    model: str
    """In whose vocabulary they are."""
    vocabulary_digest: bytes


@dataclass(frozen=True, slots=True)
class EdgeInfo:
    """Description of an edge."""

    name: str
    region: str
    models: tuple[ModelInfo, ...]
    """The models that clients without a key may use; the first serves chats that name none."""
    resume_window_s: float
    """How long a chat continues without its client, in seconds; 0: it is cancelled at once."""
    edge_list: bytes = b""
    """The signed list of the mesh's edges, unchecked (outrider.edge_list); empty: the edge has
    none."""


@dataclass(frozen=True, slots=True)
class ClientTimings:
    """Times measured by the client's own clock, from sending the request on."""

    provisional_ttft_ms: float | None
    """Milliseconds to the first provisional text; None if there was none."""
    committed_ttft_ms: float | None
    """Milliseconds to the first final token; None if there was none."""
    staying_word_ms: float | None
    """Milliseconds to the moment since which the first word has stood on screen without being taken
    back, final by then or not (`outrider.client.first_word`). None if there was no text."""
    total_ms: float
    tokens_per_s: float
    """Final tokens after the first over the time since the first; 0 with fewer than two."""


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The whole reply."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: ClientTimings
    replica_timings: Timings
    edge_timings: Timings
    num_retractions: int
    erased_chars: int
    """Code points that were shown and then taken back."""
    region: str
    replica: str
    speculation_stats: SpeculationStats = NO_SPECULATION
    inexact: bool = False
    """Whether replicas that compute differently wrote parts of it, one after the other, or one used
    KV that was rounded on its way there; never unless the region's operator allows it."""
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Log probabilities of each of `ids`, if `num_logprobs` asked for them; None for a token whose
    values are unknown (Committed.logprobs)."""
    content: str = ""
    """The answer: the text without reasoning and tool calls."""
    reasoning: str = ""
    """The model's reasoning before the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Complete tool calls. An incomplete call stays in `content`."""
    request_id: str = ""
    """Id of the chat in logs, traces and `outrider explain --request`."""
    model: str = ""
    """That answered."""
    num_moves: int = 0
    """How often another replica went on with the reply, at the edge that ended it."""

    @property
    def message(self) -> Message:
        """The reply as a message, to continue the conversation with."""
        return Message("assistant", self.content, self.tool_calls, reasoning=self.reasoning)
