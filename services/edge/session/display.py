"""The text of a reply: what is final, which drafts are shown behind it as provisional text, and
when that is retracted.

Shown is the longest run of drafts whose estimated survival is at least the threshold, cut back to
the end of a word; a line break, which moves all that follows, has to be likelier. A threshold of
0.5 shows what is more likely right than wrong, enough for a first word; 0.6 for what follows keeps
the normalised erasure (Arivazhagan et al., IWSLT 2020) near 0.2. Text that proved wrong is
retracted at once. Retractions are limited by the generic cell rate algorithm (ITU-T I.371): one
per `rewrite_interval_ms` in the long run, `rewrite_burst` of them close together; beyond that
nothing new is shown for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from outrider.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, between
from outrider.errors import MalformedFrameError
from outrider.models.detokenizer import ByteDecoder
from outrider.session.client import Provisional, Retracted
from outrider.speculation.verification import common_prefix_length
from outrider.word_boundaries import JOINERS, first_word_end, in_word, is_joined

if TYPE_CHECKING:
    from outrider.sampling.reply import ReplyText


@dataclass(frozen=True, slots=True)
class DisplayPolicy:
    """How likely drafts have to be to be shown, and how often text may be retracted: table
    `[edge.display]`."""

    threshold: Annotated[float, between(0.01, 1)] = 0.6
    """Least estimated probability of text that is shown."""
    first_threshold: Annotated[float, between(0.01, 1)] = 0.5
    """The same for a reply's first `drafts.first_tokens`."""
    line_threshold: Annotated[float, between(0.01, 1)] = 0.7
    """Least estimated probability of a line break that is shown."""
    max_risk: PositiveFloat = 1.0
    """Most tokens of what is shown that may be expected to be wrong: bounds how much of a long
    chain of likely tokens is shown, which would be retracted as a whole."""
    rewrite_interval_ms: NonNegativeFloat = 150.0
    """Least time between two retractions, averaged over `rewrite_burst`."""
    rewrite_burst: PositiveInt = 3
    """Retractions that may come without a pause."""
    erasure: NonNegativeFloat = 0.15
    """Target of retracted tokens per final token."""
    caution: NonNegativeFloat = 0.05
    """Added to the threshold for each retracted token above that target."""


@dataclass(frozen=True, slots=True)
class DraftText:
    """The text that drafts would add behind the committed text, shown or not."""

    base: int
    """Committed tokens."""
    text: str
    ends: tuple[int, ...]
    """[n] length of the text after each draft."""
    survival: tuple[float, ...]
    """[n] estimated probability that the drafts up to this one are all committed."""
    final: bool = False
    """The last draft ends the reply, so the text's end is the end of a word."""


_MAX_BEHIND: Final = 256
"""Committed ids that may wait to be decoded a second time."""
_MAX_CREDIT, _MAX_DEBT = 2.0, 12.0
"""Bounds of `Display._excess`, in tokens: a reply without retractions saves up at most the credit,
and one long retraction counts for at most the debt."""


class Display:
    """The provisional text at the client, exactly as `edge.proto` defines it."""

    def __init__(self, policy: DisplayPolicy, first_tokens: int) -> None:
        """If so many `first_tokens` of a reply are likely but no word ends in them, they are shown
        without waiting for its end: in scripts that the vocabulary spells out, a token is half a
        letter. They have a threshold of their own."""
        self._policy = policy
        self._first_tokens = first_tokens
        self._shown = ""
        self._ends: list[int] = []
        """[n] where in it each token ends that is shown whole."""
        self._shown_at: list[float] = []
        """[n] when each of them was shown."""
        self.quiet_until = float("-inf")
        """Nothing new is shown before this time."""
        self._next_rewrite = float("-inf")
        """When the next retraction would keep to the mean rate."""
        self.shown_chars = 0
        """Code points sent as provisional text."""
        self.erased_chars = 0
        """Those of them that were retracted."""
        self.num_retractions = 0
        self._first_word_left: int | None = None
        """Code points of the first shown word that are not final yet; None: no word was shown."""
        self.first_word_stayed: bool | None = None
        """Whether the first shown word became final; None: it is not known, or none was shown."""
        self.first_word_at: float | None = None
        """Time at which it was shown; None: none was."""
        self.shown_tokens = 0
        """Tokens shown before they became final."""
        self.erased_tokens = 0
        self.sooner_s = 0.0
        """Seconds by which tokens that stayed were shown before they were final, summed."""
        self._excess = 0.0
        """Tokens retracted beyond `erasure` per final token."""

    @property
    def shown(self) -> str:
        """The provisional text the client has now."""
        return self._shown

    def confirm(
        self, text: str, diverged: bool, now: float, num_tokens: int = 1
    ) -> Retracted | None:
        """`text` becomes final; `diverged`: a draft proved wrong with it.

        Returns what has to be sent before the commit.
        """
        if not self._shown:
            self._excess = max(-_MAX_CREDIT, self._excess - self._policy.erasure * num_tokens)
            return None
        kept = common_prefix_length(self._shown, text)
        contradicted = kept < min(len(self._shown), len(text))
        retract = None
        if contradicted or (diverged and kept < len(self._shown)):
            retract = self._erase(kept, now)
        self._excess = max(-_MAX_CREDIT, self._excess - self._policy.erasure * num_tokens)
        taken = min(len(text), len(self._shown))
        self._confirm_first_word(taken)
        num_stayed = sum(end <= taken for end in self._ends)
        self.shown_tokens += num_stayed
        self.sooner_s += sum(now - at for at in self._shown_at[:num_stayed])
        self._ends = [end - taken for end in self._ends[num_stayed:]]
        self._shown_at = self._shown_at[num_stayed:]
        self._shown = self._shown[taken:]
        return retract

    def forget(self) -> None:
        """The client has no provisional text: it is another client, or the same after a loss."""
        self._shown = ""
        self._ends, self._shown_at = [], []
        if self._first_word_left is not None:
            self._first_word_left = 0  # its fate is not seen any more

    def clear(self, now: float) -> Retracted | None:
        """The chat ends: no provisional text is left behind."""
        return self._erase(0, now) if self._shown else None

    def show(self, drafts: DraftText, now: float) -> Provisional | None:
        """The provisional text to show now in addition; None: nothing."""
        if now < self.quiet_until:
            return None
        limit, stability, num_likely = self._likely(drafts)
        end = word_end(drafts.text, limit, drafts.final)
        if not end and not drafts.base and num_likely >= self._first_tokens > 0:
            end = limit
        target = drafts.text[:end]
        if len(target) not in drafts.ends:
            target = target.rstrip(" ")  # that of a word to come, which may yet be a comma
        if len(target) <= len(self._shown) or not target.startswith(self._shown):
            return None
        added = Provisional(drafts.base, len(self._shown), target[len(self._shown) :], stability)
        self.shown_chars += len(added.text)
        if self._first_word_left is None and target.strip():
            self._first_word_left = first_word_end(target, is_whole=True)
            self.first_word_at = now
        self._shown = target
        self._ends = [end for end in drafts.ends if end <= len(target)]
        num_new = len(self._ends) - len(self._shown_at)
        self._shown_at = [*self._shown_at, *[now] * num_new][: len(self._ends)]
        return added

    def _confirm_first_word(self, num_chars: int) -> None:
        if self._first_word_left:
            self._first_word_left = max(0, self._first_word_left - num_chars)
            if not self._first_word_left:
                self.first_word_stayed = True

    def _erase(self, kept: int, now: float) -> Retracted:
        self.erased_chars += len(self._shown) - kept
        if self._first_word_left and kept < self._first_word_left:
            self._first_word_left, self.first_word_stayed = 0, False
        self.num_retractions += 1
        num_erased = sum(end > kept for end in self._ends)
        self.erased_tokens += num_erased
        self._excess = min(_MAX_DEBT, self._excess + num_erased)
        self._ends = [end for end in self._ends if end <= kept]
        self._shown_at = self._shown_at[: len(self._ends)]
        self._shown = self._shown[:kept]
        interval_s = self._policy.rewrite_interval_ms / 1000
        self._next_rewrite = max(self._next_rewrite, now) + interval_s
        self.quiet_until = self._next_rewrite - (self._policy.rewrite_burst - 1) * interval_s
        return Retracted(kept)

    def _likely(self, drafts: DraftText) -> tuple[int, float, int]:
        limit, stability, risk, count = 0, 1.0, 0.0, 0
        for number, (end, survival) in enumerate(
            zip(drafts.ends, drafts.survival, strict=True), start=drafts.base
        ):
            breaks_line = "\n" in drafts.text[max(limit, len(self._shown)) : end]
            risk += 1 - survival
            if survival < self._least(number, breaks_line) or risk > self._policy.max_risk:
                break
            limit, stability, count = end, survival, count + 1
        return limit, stability, count

    def _least(self, number: int, breaks_line: bool) -> float:
        """Least survival of the reply's token `number`; a break that is shown already is no more
        than any other text."""
        policy = self._policy
        threshold = policy.first_threshold if number < self._first_tokens else policy.threshold
        threshold += policy.caution * max(0.0, self._excess)
        return max(threshold, policy.line_threshold) if breaks_line else threshold


def word_end(text: str, limit: int, final: bool) -> int:
    """The last end of a word in `text` at or before `limit`, 0 if there is none.

    The end of `text` itself counts only if it is `final`, or is no part of a word.
    """
    for end in range(limit, 0, -1):
        if end == len(text):
            if final or not (in_word(text[-1]) or text[-1] in JOINERS):
                return end
        elif not is_joined(text[end - 1], text[end]):
            return end
    return 0


class ReplyDecoder:
    """Decodes final ids through ReplyText, and drafts behind them with a copy of the UTF-8 decoder.

    Invariant: the text of all committed ids but `_behind` is what was released, then `_held` (it
    may be the beginning of a stop string), then the bytes of an unfinished character in `_decoder`.
    """

    def __init__(
        self,
        reply: ReplyText,
        token_bytes: Callable[[int], bytes],
        stop: tuple[str, ...],
        *,
        strips_space: bool = False,
    ) -> None:
        """With `strips_space` the reply's text loses the space it begins with, as in `reply`."""
        self._reply = reply
        self._token_bytes = token_bytes
        self._stop = stop
        self._decoder = ByteDecoder(strips_space=strips_space)
        self._held = ""
        self._behind: list[int] = []
        """Committed ids that `_decoder` has not decoded yet."""
        self._num_released = 0
        """Code points of text that they released."""

    @property
    def finished(self) -> bool:
        """Whether the reply ends with the ids committed so far."""
        return self._reply.finished is not None

    @property
    def stop_string(self) -> str:
        """The stop string that the reply ended at; empty: none."""
        return self._reply.stop_string

    def commit(self, ids: Sequence[int]) -> str:
        """The text these ids release. Raises MalformedFrameError for ids past the reply's end."""
        text = ""
        for token in ids:
            if self._reply.finished is not None:
                raise MalformedFrameError("the region committed tokens past the end of the reply")
            text += self._reply.push(token)
        self._behind.extend(ids)
        self._num_released += len(text)
        if len(self._behind) > _MAX_BEHIND:
            self._catch_up()
        return text

    def _catch_up(self) -> None:
        """Decode what was committed, for drafts behind it: most replies show none, and their text
        is decoded once, in `_reply`."""
        if not self._behind:
            return
        whole = self._decoder.decode(b"".join(map(self._token_bytes, self._behind)))
        self._held = (self._held + whole)[self._num_released :]
        self._behind.clear()
        self._num_released = 0

    def resume(self, ids: Sequence[int]) -> str:
        """The text of ids that another run committed, as of `commit`.
        Raises MalformedFrameError for ids past the reply's end."""
        head, last = ids[:-1], ids[-1:]
        whole = self._decoder.decode(b"".join(map(self._token_bytes, head)))
        text = self._reply.push_all(head) if head else ""
        if self.finished and head:
            raise MalformedFrameError("the tokens to resume go past the end of the reply")
        self._held = (self._held + whole)[len(text) :]
        return text + self.commit(last)

    def finish(self) -> str:
        """The reply has ended: text held back as the possible beginning of a stop string."""
        self._catch_up()
        self._held = ""
        return self._reply.flush()

    def draft_text(
        self, base: int, drafts: Sequence[int], survival: Sequence[float], final: bool
    ) -> DraftText:
        """The text that `drafts` [n] would add, up to the first stop string in it."""
        self._catch_up()
        decoder = self._decoder.copy()
        text, ends = self._held, []
        for token in drafts:
            text += decoder.decode(self._token_bytes(token))
            ends.append(len(text))
        cut = min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=len(text))
        limited = tuple(min(end, cut) for end in ends)
        return DraftText(base, text[:cut], limited, tuple(survival), final or cut < len(text))
