"""The text of a chat as its events build it: committed, and provisional behind it (pure)."""

from __future__ import annotations

from outrider.client.events import Event, Interrupted
from outrider.errors import MalformedFrameError
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import TokenLogprobs


class Transcript:
    """The text and tokens that a reader sees. `apply` is the only method that changes it.

    `apply` raises MalformedFrameError for an event that does not fit the text before it, as
    `edge.proto` defines the events, so an edge's mistake is reported instead of shown.
    """

    def __init__(self) -> None:
        self.request_id = ""
        """Empty until the edge accepted the chat."""
        self.model = ""
        self.template_date = ""
        """The date in the prompt, YYYY-MM-DD; empty: the model's template shows none."""
        self.committed = ""
        self.provisional = ""
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        """Log probabilities of each of `ids`; None for a token whose values are unknown or were not
        asked for."""
        self.model_identity = b""
        """Opaque identity of the model that computed the last token; empty: unknown."""
        self.inexact = False
        """Whether replicas that compute differently wrote parts of the reply."""
        self.num_retractions = 0
        self.erased_chars = 0
        """Code points shown and then taken back."""
        self.done: Done | None = None

    @property
    def text(self) -> str:
        """Everything visible."""
        return self.committed + self.provisional

    def apply(self, event: Event) -> None:
        """Take one event."""
        if self.done is not None:
            raise MalformedFrameError("the edge sent an event after the end of the chat")
        match event:
            case Accepted(request_id=request_id, model=model, template_date=template_date):
                self.request_id, self.model = request_id, model
                self.template_date = template_date
            case Provisional(erase_to=erase_to, text=text):
                self._erase(erase_to)
                self.provisional += text
            case Retracted(erase_to=erase_to):
                self._erase(erase_to)
            case Interrupted():
                self._erase(0)
            case Committed():
                self._commit(event)
            case Done():
                self._finish(event)

    def _erase(self, erase_to: int) -> None:
        num_shown = len(self.provisional)
        if erase_to > num_shown:
            raise MalformedFrameError(
                f"the edge keeps {erase_to} provisional characters, there are {num_shown}"
            )
        if erase_to < num_shown:
            self.num_retractions += 1
            self.erased_chars += num_shown - erase_to
            self.provisional = self.provisional[:erase_to]

    def _commit(self, event: Committed) -> None:
        shared = min(len(event.text), len(self.provisional))
        if event.text[:shared] != self.provisional[:shared]:
            raise MalformedFrameError("the edge committed text against provisional text not erased")
        if event.upto != len(self.ids) + len(event.ids):
            raise MalformedFrameError(
                f"the edge says {event.upto} tokens are final, it sent "
                f"{len(self.ids) + len(event.ids)}"
            )
        self.committed += event.text
        self.provisional = self.provisional[shared:]
        self._add_logprobs(event)
        self.ids.extend(event.ids)
        if event.model_identity is not None:
            self.model_identity = event.model_identity
        self.inexact = self.inexact or event.inexact

    def _add_logprobs(self, event: Committed) -> None:
        num_unknown = len(event.ids) - len(event.logprobs)
        chosen = tuple(at.chosen.id for at in event.logprobs)
        if num_unknown < 0 or chosen != event.ids[num_unknown:]:
            raise MalformedFrameError("the edge sent log probabilities of other tokens")
        self.logprobs += [None] * num_unknown
        self.logprobs += event.logprobs

    def _finish(self, event: Done) -> None:
        if self.provisional or event.upto != len(self.ids):
            raise MalformedFrameError("the edge ended the chat with text or tokens outstanding")
        self.inexact = self.inexact or event.inexact
        self.done = event
