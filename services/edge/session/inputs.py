"""What a chat session is told: one dataclass per thing that happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Priority, Speculation, Timings, Usage
from services.edge.session.control.pace import NO_PACE, Pace

if TYPE_CHECKING:
    from outrider.models.chat import Message


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What the client has of the chat already."""

    token: str = ""
    """Names the chat; empty: its request id does."""
    upto: int = 0
    """Committed tokens."""
    num_chars: int = 0
    """Code points of committed text."""
    ids: tuple[int, ...] = ()
    """Those tokens, or none: then they are computed anew."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat as the client asked for it, validated."""

    request_id: str
    """Globally unique, but for other runs of the same request."""
    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    priority: Priority | None = None
    """None leaves it to the region."""
    deadline_ms: int = 0
    """From the arrival of the request; 0: none."""
    provisional: bool = False
    speculation: Speculation = Speculation.ON
    thin: bool = False
    """The region tokenizes."""
    residency: tuple[str, ...] = ()
    trace: tuple[str, str] = ("", "")
    """W3C traceparent and tracestate of the client's span."""
    resume: ResumePoint = ResumePoint()
    digest: bytes = b""
    """Of the request as it came, without what may differ when it is sent again."""
    group: bytes = b""
    """The trust group within which it teaches others and learns from them; empty: by itself."""


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """The first frame of the stream arrived whole and is in order."""

    request: ChatRequest


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The client sent CancelChat."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client gave the chat up, or nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class AudienceChanged:
    """A client came, came back, or was lost: what it was shown does not stand any more."""

    provisional: bool
    """Whether provisional text is wanted from now on."""


@dataclass(frozen=True, slots=True)
class ClientFailed:
    """The client broke the protocol or reads too slowly, or the edge ends the chat."""

    error: OutriderError


@dataclass(frozen=True, slots=True)
class PromptReady:
    """Template and tokenizer are done."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptFailed:
    """The prompt could not be tokenized."""

    error: OutriderError


@dataclass(frozen=True, slots=True)
class RegionOpened:
    """The replica admitted the session."""

    prompt_tokens: int
    cached_tokens: int
    replica: str
    region: str
    vocabulary_digest: bytes
    max_drafts: int = 0
    """Most drafts of a session in one call; 0: it did not say."""
    echo: int = 0
    """The number of OpenRegion; 0: it did not come back."""
    held_s: float = 0.0
    """How long the replica had it."""


@dataclass(frozen=True, slots=True)
class RegionCommit:
    """Tokens [base, base + accepted) are this edge's drafts of `epoch`; `ids` follow them."""

    epoch: int
    base: int
    accepted: int
    ids: tuple[int, ...]
    upto: int
    """Number of tokens now final: base + accepted + len(ids)."""
    pace: Pace = NO_PACE
    lossy: tuple[int, ...] = ()
    """Numbers of tokens among these that a lossy threshold let through."""


@dataclass(frozen=True, slots=True)
class RegionDone:
    """The replica ended the session."""

    finish_reason: FinishReason
    upto: int
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class RegionMoved:
    """Another replica goes on with the session, after the tokens committed so far."""

    replica: str
    region: str
    lost_epoch: int = 0
    """Drafts of this epoch and all before it are lost."""


@dataclass(frozen=True, slots=True)
class RegionFailed:
    """The region ended the session by an error, or its stream to the edge is lost."""

    error: OutriderError
    is_cut_off: bool = False
    """The stream is lost, the region did not say anything; or there is no router just now, though
    there was one a moment ago."""
    late_s: float = 0.0
    """Time for which this edge itself has stood still so far: no region is to blame for it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A chain of the drafter in another process; the last one heard counts."""

    base: int
    """Final tokens of the reply before the chain, as far as it knew."""
    ids: tuple[int, ...]
    survival: tuple[float, ...]
    """[n] chance that each guess and all before it are right; never rising."""
    sources: tuple[str, ...]
    draft_s: float = 0.0
    """Time that one guess takes it."""


@dataclass(frozen=True, slots=True)
class DraftsReady:
    """The chat's drafter, which works beside the loop, has new guesses."""

    heard: Heard | None = None
    """What a drafter in another process says; None: the chat's own drafter knows."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `next_deadline` named has come."""


Input: TypeAlias = (
    ChatAsked
    | CancelAsked
    | ClientGone
    | AudienceChanged
    | ClientFailed
    | PromptReady
    | PromptFailed
    | RegionOpened
    | RegionCommit
    | RegionDone
    | RegionMoved
    | RegionFailed
    | DraftsReady
    | Tick
)
