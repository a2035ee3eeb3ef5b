"""Inputs and actions of a chat session, one dataclass each.

Commit, Draft and the client's events are shared by all tiers (outrider.session). The session
decides; the shell (`services/edge/chat/chat.py`) carries out its actions in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed, Done, Failed, Provisional, Retracted
from outrider.session.region import Commit, Draft
from outrider.session.runs import UNKNOWN_RUN
from outrider.session.types import FinishReason, Priority, Speculation, Timings, Usage
from services.edge.session.template_options import NO_OPTIONS, TemplateOptions

if TYPE_CHECKING:
    from outrider.models.chat import Message
    from outrider.reply_parsing.formats import ReplyFormat


RawPrompt: TypeAlias = str | tuple[int, ...]
"""A prompt as it is, without a chat template: text, in which the texts of control tokens are these
tokens, or ids."""

MAX_LEAD: Final = 65_535
"""Most drafts ahead of the commits that a drafter can be asked for: its messages have two bytes."""

Span: TypeAlias = tuple[int, int]
"""Code points [begin, end) of a reply, from its beginning."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The part of the chat that the client already has."""

    token: str = ""
    """Names the chat; empty: its request id does."""
    upto: int = 0
    """Committed tokens."""
    num_chars: int = 0
    """Code points of committed text."""
    ids: tuple[int, ...] = ()
    """Those tokens, or none: then they are computed anew."""
    model_identity: bytes = b""
    """Identity of the model that computed them (outrider.model_identity); empty: unknown."""
    template_date: str = ""
    """The date that the chat's template showed, YYYY-MM-DD; empty: it shows none."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat as the client asked for it, validated."""

    request_id: str
    """Globally unique, but for other runs of the same request."""
    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    left_to_model: tuple[str, ...] = ()
    """Names of values of `sampling` that the request leaves to the model's own settings, if it has
    any; without those they are as `sampling` has them."""
    priority: Priority | None = None
    """None leaves it to the region."""
    deadline_ms: int = 0
    """Milliseconds from the arrival of the request; 0: no deadline."""
    provisional: bool = False
    """Whether the client wants provisional text."""
    speculation: Speculation = Speculation.ON
    added_rtt_ms: int = 0
    """Milliseconds by which the way to the region is made longer: a development setting."""
    thin: bool = False
    """The region tokenizes."""
    raw_prompt: RawPrompt | None = None
    """Goes to the model as it is, and there are no messages; None: the messages do. Not of thin
    chats."""
    raw_gets_ends: bool = True
    """A text as raw_prompt gets the tokens that the model's prompts begin and end with."""
    residency: tuple[str, ...] = ()
    trace: tuple[str, str] = ("", "")
    """W3C traceparent and tracestate of the client's span."""
    resume: ResumePoint = ResumePoint()
    run: int = UNKNOWN_RUN
    """Which run of the request it is (outrider.session.runs); UNKNOWN_RUN: its client does not
    say."""
    is_run_ours: bool = False
    """This edge numbered the run, by its own clock, for its client numbers none."""
    digest: bytes = b""
    """Digest of the request as it arrived, without fields that may differ when it is repeated."""
    is_keyed: bool = False
    """Its client has named it by an idempotency key, and may ask for it again at another edge."""
    is_background: bool = False
    """Nobody has asked for it yet: the region computes it beside nobody, or refuses it."""
    group: bytes = b""
    """The trust group whose chats share what they learn of drafts; empty: it shares nothing."""
    group_lasts: bool = False
    """The group's name is the same after a restart of the edge: what it learns may be kept."""
    prediction: str = ""
    """The expected reply, from which the region copies drafts. Never with `thin`."""
    drafts_itself: bool = False
    """Its client sends drafts of its own, which come as a DrafterReport each time; the edge makes
    none, and learns nothing from these."""
    vocabulary_digest: bytes = b""
    """The vocabulary that the client's ids are of; empty: it did not say."""
    tools: tuple[str, ...] = ()
    """Tools that the model may call, as `outrider.models.tools.check_tools` returned them."""
    tool_choice: str = "auto"
    """auto, none, required, or the name of a tool."""
    parallel_tool_calls: bool = True
    """Whether a reply may have more than one call."""
    template_options: TemplateOptions = NO_OPTIONS
    """What the client asks of the model's chat template."""
    template_variables: str = ""
    """The same as variables of that template, once it is known (outrider.models.template_variables,
    check_variables)."""
    reply_format: ReplyFormat | None = None
    """How its reply is to be read, once its model is known; None: as text alone."""

    @property
    def has_prompt(self) -> bool:
        """Whether it has a prompt; without one it can only continue a chat that this edge holds."""
        return bool(self.messages) or self.raw_prompt is not None


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """The chain that the drafter process proposes; the last report replaces those before it."""

    base: int
    """Final tokens of the reply before the chain, as far as the drafter knew."""
    ids: tuple[int, ...]
    survival: tuple[float, ...]
    """[n] probability that each draft and all before it are right; never rising."""
    sources: tuple[str, ...]
    draft_s: float = 0.0
    """The drafter's time per draft token."""


# Inputs.


@dataclass(frozen=True, slots=True)
class ChatAsked:
    """The first frame of the stream arrived whole and is in order."""

    request: ChatRequest
    waited_s: float = 0.0
    """Time since then: it waited for its model."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The client sent CancelChat."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client gave the chat up, or nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class ClientChanged:
    """A client joined, came back or was lost; it has no provisional text now."""

    provisional: bool
    """Whether provisional text is wanted from now on."""
    run: int = UNKNOWN_RUN
    """The run as which it came back; UNKNOWN_RUN: it did not come back."""


@dataclass(frozen=True, slots=True)
class ClientFailed:
    """The client broke the protocol or reads too slowly, or the edge ends the chat."""

    error: OutriderError


@dataclass(frozen=True, slots=True)
class AheadTokens:
    """The beginning of a reply that was computed before it was asked for."""

    ids: tuple[int, ...] = ()
    model_identity: bytes = b""
    """Of the replica that computed it; empty: unknown."""


NOTHING_AHEAD: Final = AheadTokens()


@dataclass(frozen=True, slots=True)
class PromptReady:
    """Template and tokenizer are done, or not needed."""

    ids: tuple[int, ...] | None
    """None: the region tokenizes the messages."""
    prediction: tuple[int, ...] = ()
    """Those of the request's prediction."""
    ahead: AheadTokens = NOTHING_AHEAD
    """The reply's first tokens, if they are known already. Not of a request that resumes."""


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
    """Most drafts of a session in one call of the model; 0: it did not say."""
    echo: int = 0
    """`echo` of OpenRegion; 0: it did not come back."""
    ack_delay_s: float = 0.0
    """Time from the arrival of OpenRegion to this answer."""
    model_identity: bytes = b""
    """Identity of the replica's model; empty: unknown."""


@dataclass(frozen=True, slots=True)
class RegionDone:
    """The replica ended the session."""

    finish_reason: FinishReason
    upto: int
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    checksum: int | None = None
    """Checksum of the reply's tokens on the replica; None: nothing to compare with."""


@dataclass(frozen=True, slots=True)
class RegionMoved:
    """Another replica continues the session, after the tokens committed so far."""

    replica: str
    region: str
    lost_epoch: int = 0
    """Drafts of this epoch and all before it are lost."""
    model_identity: bytes = b""
    """Identity of the new replica's model; empty: unknown."""


@dataclass(frozen=True, slots=True)
class RegionFailed:
    """The region ended the session by an error, or its stream to the edge is lost."""

    error: OutriderError
    is_cut_off: bool = False
    """The stream was lost without a word from the region, or no router is reachable just now."""
    late_s: float = 0.0
    """Total time so far for which this edge's own loop was blocked or the machine suspended; it
    does not count towards `ReopenPolicy.give_up_after_s`."""


@dataclass(frozen=True, slots=True)
class DraftsReady:
    """More drafts can be had."""

    report: DrafterReport | None = None
    """The drafter process's report; None: the chat's own drafter has more drafts."""


@dataclass(frozen=True, slots=True)
class DraftDropped:
    """A frame of drafts could not be sent: the way to the region is congested. To be given before
    any other input."""

    frame: Draft


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `next_deadline` named has come."""


# Actions.


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Render and encode the messages, and encode the prediction; the answer is PromptReady or
    PromptFailed."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    variables: str = ""
    prediction: str = ""
    text: str | None = None
    """Encode this instead, as it is."""
    is_prompt: bool = True
    """`text` gets the tokens that the model's prompts begin and end with."""


@dataclass(frozen=True, slots=True)
class LeaveToRegion:
    """Give Tokenize up: the region tokenizes the messages. The answer is PromptReady, without ids
    unless these were just made, or PromptFailed."""


@dataclass(frozen=True, slots=True)
class OpenRegion:
    """Open the session upstream."""

    request: ChatRequest
    prompt: tuple[int, ...] | None
    """None: the region tokenizes the request's messages."""
    deadline_ms: int
    """Time left for the request; 0: no deadline."""
    echo: int = field(default=0, compare=False)
    """Sequence number that the replica returns, to measure the round trip; 0: none."""
    prediction: tuple[int, ...] = ()
    """Token ids of the expected reply, from its first token on."""
    begun_ahead: bool = False
    """The tokens to resume after were computed in the background: to the region it is a new
    request, not one that lost its replica."""
    is_proven: bool = False
    """A token came from the replica that had the session last: it could serve it."""


@dataclass(frozen=True, slots=True)
class OpenDrafter:
    """Have the drafter process draft for a reply; Finish ends it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """Tokens of it that are final already."""
    params: SamplingParams
    ends: frozenset[int]
    """Ids that end the reply."""
    lead: int
    """Most drafts wanted ahead of the final tokens."""
    group: bytes = b""
    """The trust group whose replies the drafter may draw on; empty: no other replies."""
    group_lasts: bool = False
    """See `ChatRequest.group_lasts`."""


@dataclass(frozen=True, slots=True)
class TellDrafter:
    """Tell the drafter process which tokens became final."""

    ids: tuple[int, ...]
    lead: int
    """Most drafts wanted ahead of the final tokens from now on."""


@dataclass(frozen=True, slots=True)
class CancelRegion:
    """Tell the region that nobody waits any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing more will be sent either way: end the stream, forget the session."""


Input: TypeAlias = (
    ChatAsked
    | CancelAsked
    | ClientGone
    | ClientChanged
    | ClientFailed
    | PromptReady
    | PromptFailed
    | RegionOpened
    | Commit
    | RegionDone
    | RegionMoved
    | RegionFailed
    | DraftsReady
    | DraftDropped
    | Tick
)
ClientEvent: TypeAlias = Accepted | Provisional | Retracted | Committed | Done | Failed
Action: TypeAlias = (
    Tokenize
    | LeaveToRegion
    | OpenRegion
    | Draft
    | OpenDrafter
    | TellDrafter
    | CancelRegion
    | ClientEvent
    | Finish
)
