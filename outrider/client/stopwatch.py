"""When the text of a chat came (pure)."""

from __future__ import annotations

from outrider.client.events import ClientTimings, Event
from outrider.client.first_word import FirstWord
from outrider.client.transcript import Transcript
from outrider.session.client import Committed, Done, Provisional


class Stopwatch:
    """Measures one chat. Times in seconds on the clock of `now`."""

    def __init__(self) -> None:
        self.sent_at = 0.0
        self._ended_at = 0.0
        self._provisional_at: float | None = None
        self._committed_at: float | None = None
        self._first_word = FirstWord()

    def saw(self, event: Event, transcript: Transcript, now: float) -> None:
        """An event came, and was applied."""
        is_whole = transcript.done is not None
        self._first_word.see(transcript.committed, transcript.provisional, now, is_whole=is_whole)
        if isinstance(event, Provisional) and self._provisional_at is None:
            self._provisional_at = now
        if isinstance(event, Committed) and event.ids and self._committed_at is None:
            self._committed_at = now
        if isinstance(event, Done):
            self._ended_at = now

    def timings(self, num_tokens: int) -> ClientTimings:
        """Timings of the finished chat, which has `num_tokens` final tokens."""
        first = self._committed_at
        rate = 0.0
        if first is not None and num_tokens > 1 and self._ended_at > first:
            rate = (num_tokens - 1) / (self._ended_at - first)
        return ClientTimings(
            provisional_ttft_ms=self._since_sent(self._provisional_at),
            committed_ttft_ms=self._since_sent(first),
            staying_word_ms=self._since_sent(self._first_word.staying_at),
            total_ms=(self._ended_at - self.sent_at) * 1000,
            tokens_per_s=rate,
        )

    def _since_sent(self, at: float | None) -> float | None:
        return None if at is None else (at - self.sent_at) * 1000
