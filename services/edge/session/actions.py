"""What a chat session wants done, in order; the shell decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Timings, Usage
from services.edge.session.inputs import ChatRequest

if TYPE_CHECKING:
    from outrider.models.chat import Message


Span: TypeAlias = tuple[int, int]
"""Code points [begin, end) of a reply, from its beginning."""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Render and encode the messages; the answer is PromptReady or PromptFailed."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class OpenRegion:
    """Open the session upstream."""

    request: ChatRequest
    prompt: tuple[int, ...] | None
    """None: the region tokenizes the request's messages."""
    deadline_ms: int
    """What is left of the request's; 0: none."""
    echo: int = field(default=0, compare=False)
    """A number that the replica returns; 0: none."""
    lost_replicas: int = 0
    """Replicas lost with the chat, one after the other, without a token from any of them."""


@dataclass(frozen=True, slots=True)
class SendDraft:
    """Guesses for the reply's tokens from number `base` on. Frames of an epoch are contiguous."""

    epoch: int
    base: int
    ids: tuple[int, ...]
    continues: bool = False
    """An earlier frame of the epoch began its chain."""
    echo: int = field(default=0, compare=False)
    """A number that the replica returns; 0: none."""


@dataclass(frozen=True, slots=True)
class OpenDrafter:
    """Have a reply guessed by the drafter beside the loop; it ends with Finish."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """What is final of it already."""
    params: SamplingParams
    ends: frozenset[int]
    """Ids that end the reply."""
    lead: int
    """Most guesses wanted ahead of what is final."""
    group: bytes = b""
    """Whose other replies it is guessed by; empty: nobody's."""


@dataclass(frozen=True, slots=True)
class TellDrafter:
    """These ids became final, and so many guesses are wanted ahead of them now."""

    ids: tuple[int, ...]
    lead: int


@dataclass(frozen=True, slots=True)
class CancelRegion:
    """Tell the region that nobody waits any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """To the client: the chat is under way."""

    request_id: str
    model: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Provisional:
    """To the client: of the provisional text `erase_to` code points stay, `text` follows."""

    base: int
    erase_to: int
    text: str
    stability: float


@dataclass(frozen=True, slots=True)
class Retract:
    """To the client: of the provisional text `erase_to` code points stay."""

    erase_to: int


@dataclass(frozen=True, slots=True)
class Commit:
    """To the client: `text` is final; it agrees with the provisional text still shown."""

    text: str
    ids: tuple[int, ...]
    upto: int
    lossy: tuple[int, ...] = ()
    """Numbers of tokens that a lossy threshold let through."""
    lossy_spans: tuple[Span, ...] = ()
    """For each of those, where its text stands in the reply."""


@dataclass(frozen=True, slots=True)
class RidingAhead:
    """What the edge's own drafts came to in one chat; see the message of this name."""

    shown_tokens: int = 0
    erased_tokens: int = 0
    drafted_tokens: int = 0
    sent_tokens: int = 0
    checked_tokens: int = 0
    right_tokens: int = 0
    sending_rounds: int = 0
    holding_rounds: int = 0
    switches: int = 0
    rtt_ms: float = 0.0
    commit_interval_ms: float = 0.0
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """To the client, last: the reply is whole, or was cancelled."""

    finish_reason: FinishReason
    upto: int
    usage: Usage
    timings: Timings
    edge_timings: Timings
    region: str
    replica: str
    ahead: RidingAhead = RidingAhead()


@dataclass(frozen=True, slots=True)
class Failed:
    """To the client, last: the chat ended by an error."""

    error: OutriderError


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing more will be sent either way: end the stream, forget the session."""


ClientEvent: TypeAlias = Accepted | Provisional | Retract | Commit | Done | Failed
Action: TypeAlias = (
    Tokenize
    | OpenRegion
    | SendDraft
    | OpenDrafter
    | TellDrafter
    | CancelRegion
    | ClientEvent
    | Finish
)
