"""The reply's text: what is final, and what drafts would add behind it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outrider.errors import MalformedFrameError
from services.edge.session.actions import Span
from services.edge.session.display import Outlook

if TYPE_CHECKING:
    from outrider.sampling.reply import ReplyText

_UTF8 = codecs.getincrementaldecoder("utf-8")


class ReplyFront:
    """Final text through ReplyText; provisional text through a copy of the decoder behind it.

    Invariant: the text of all committed ids is what was released, then `_held` (it may be the
    beginning of a stop string), then the bytes of an unfinished character in `_decoder`.
    """

    def __init__(
        self, reply: ReplyText, token_bytes: Callable[[int], bytes], stop: tuple[str, ...]
    ) -> None:
        self._reply = reply
        self._token_bytes = token_bytes
        self._stop = stop
        self._decoder = _UTF8("replace")
        self._held = ""
        self._num_chars = 0

    @property
    def finished(self) -> bool:
        """Whether the reply ends with the ids committed so far."""
        return self._reply.finished is not None

    def commit(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """The text these ids release, and where each of them stands in the reply; a character made
        by several ids belongs to each. Raises MalformedFrameError for ids past the reply's end."""
        parts, spans = [], []
        for token in ids:
            if self.finished:
                raise MalformedFrameError("the region committed tokens past the end of the reply")
            whole = self._decoder.decode(self._token_bytes(token))
            begin, self._num_chars = self._num_chars, self._num_chars + len(whole)
            begun = bool(self._decoder.getstate()[0])
            spans.append((begin, self._num_chars + begun))
            self._held += whole
            parts.append(self._reply.push(token))
            self._held = self._held[len(parts[-1]) :]
        return "".join(parts), spans

    def resume(self, ids: Sequence[int]) -> str:
        """The text of ids that another run committed: `commit`, without saying where each stands.
        Raises MalformedFrameError for ids past the reply's end."""
        head, last = ids[:-1], ids[-1:]
        whole = self._decoder.decode(b"".join(map(self._token_bytes, head)))
        text = self._reply.push_all(head) if head else ""
        if self.finished and head:
            raise MalformedFrameError("the tokens to resume go past the end of the reply")
        self._num_chars += len(whole)
        self._held = (self._held + whole)[len(text) :]
        return text + self.commit(last)[0]

    def finish(self) -> str:
        """Text held back until now that is final after all; the reply has ended."""
        self._held = ""
        return self._reply.flush()

    def outlook(
        self, base: int, drafts: Sequence[int], survival: Sequence[float], final: bool
    ) -> Outlook:
        """The text that `drafts` [n] would add, up to the first stop string in it."""
        decoder = _UTF8("replace")
        decoder.setstate(self._decoder.getstate())
        text, ends = self._held, []
        for token in drafts:
            text += decoder.decode(self._token_bytes(token))
            ends.append(len(text))
        cut = min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=len(text))
        limited = tuple(min(end, cut) for end in ends)
        return Outlook(base, text[:cut], limited, tuple(survival), final or cut < len(text))
