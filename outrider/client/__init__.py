"""The client SDK: chats with an edge over QUIC.

    async with connect("quic://localhost:4433", ca=Path("cert.pem")) as client:
        async with client.chat([Message("user", "Hello")]) as chat:
            async for event in chat:
                ...
            result = await chat.result()

`connect_blocking` is the same for programs without an event loop.
"""

from outrider.client.blocking import BlockingChat, BlockingClient, connect_blocking
from outrider.client.chat import Chat
from outrider.client.client import Client, connect
from outrider.client.events import (
    ChatResult,
    ClientTimings,
    EdgeInfo,
    Event,
    Interrupted,
    ModelInfo,
    Resumed,
    TextIds,
)
from outrider.client.recovery import ReconnectPolicy
from outrider.client.tickets import SessionTickets
from outrider.client.transcript import Transcript
from outrider.cost import Cost
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import (
    FinishReason,
    Priority,
    ScoredToken,
    Speculation,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    Usage,
)

__all__ = [
    "Accepted",
    "ArgumentsDelta",
    "BlockingChat",
    "BlockingClient",
    "Chat",
    "ChatResult",
    "Client",
    "ClientTimings",
    "Committed",
    "ContentDelta",
    "Cost",
    "Done",
    "EdgeInfo",
    "Event",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "Interrupted",
    "Message",
    "ModelInfo",
    "Priority",
    "Provisional",
    "ReasoningDelta",
    "ReconnectPolicy",
    "Resumed",
    "Retracted",
    "SamplingParams",
    "ScoredToken",
    "SessionTickets",
    "Speculation",
    "SpeculationStats",
    "TextIds",
    "Timings",
    "TokenLogprobs",
    "ToolCall",
    "ToolCallBegun",
    "ToolCallEnded",
    "Transcript",
    "Usage",
    "connect",
    "connect_blocking",
]
