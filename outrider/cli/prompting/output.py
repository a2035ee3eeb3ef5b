"""Output of `outrider chat` for a reply: its text, how long it took, or all of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from outrider.cli.prompting.options import logprobs_as_objects
from outrider.cli.prompting.painter import Painter
from outrider.session.types import FinishReason

if TYPE_CHECKING:
    from outrider.client import ChatResult, ClientTimings, Event

INEXACT: Final = (
    "inexact: a replica that computes differently continued the reply, or cached KV was rounded"
)
"""Printed below a reply that is not what a single model would have written."""


class ReplyView:
    """Shows a reply as its events arrive; its text only if `shown`. An interruption is always
    reported, once for each outage, which ends with the next final text rather than the first sign
    of life."""

    def __init__(
        self, painter: Painter, *, shown: bool, give_up_after_s: float, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds since the epoch."""
        # Imported here: the other roles' images have the command, and not the client's packages.
        from outrider.client import Transcript

        self._painter = painter
        self._shown = shown
        self._give_up_after_s = give_up_after_s
        self._clock = clock
        self.transcript = Transcript()
        self._reason = ""
        self._cut_at = 0.0
        """When the outage began; meaningless without a reason."""

    def follow(self, event: Event) -> None:
        """Take an event."""
        from outrider.client import Interrupted

        before = len(self.transcript.committed)
        self.transcript.apply(event)
        fresh = self.transcript.committed[before:]
        if isinstance(event, Interrupted):
            self._interrupted(event.reason)
        elif self._reason and (fresh or self.transcript.done is not None):
            self._say(f"back after {self._clock() - self._cut_at:.1f} s")
            self._reason = ""
        if self._shown and not self._reason:
            transcript = self.transcript
            self._paint(fresh, transcript.provisional)

    def break_off(self) -> None:
        """End a reply that was not completed: erase provisional text and start a new line."""
        if self._shown and self.transcript.done is None and (self.transcript.text or self._reason):
            print(self._painter.paint("", "") if sys.stdout.isatty() else "", flush=True)

    def _interrupted(self, reason: str) -> None:
        if not self._reason:
            self._cut_at = self._clock()
        if reason != self._reason:
            self._reason = reason
            until = time.localtime(self._cut_at + self._give_up_after_s)
            self._say(f"interrupted: {reason} (trying until {time.strftime('%H:%M:%S', until)})")

    def _say(self, text: str) -> None:
        """In the middle of a reply. Where it is shown on a terminal, behind the final text, until
        more of it comes; otherwise on standard error."""
        if self._shown and sys.stdout.isatty():
            self._paint("", f" [{text}]")
        else:
            print(f"outrider: {text}", file=sys.stderr, flush=True)

    def _paint(self, committed: str, provisional: str) -> None:
        """Show new text; provisional text is only shown on a terminal."""
        if sys.stdout.isatty():
            sys.stdout.write(self._painter.resize(*terminal_size()))
            sys.stdout.write(self._painter.paint(committed, provisional))
        else:
            sys.stdout.write(committed)
        sys.stdout.flush()


def terminal_size() -> tuple[int, int]:
    """Columns and rows of the terminal that standard output is; any, where it is none."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):  # a file, a pipe, or nothing that has a descriptor
        return 80, 24
    return size.columns, size.lines


def report(prompt: str, result: ChatResult, *, as_json: bool, shown: bool) -> None:
    """One reply is whole; `shown` is whether its text was painted as it came."""
    if as_json:
        print(json.dumps(as_object(prompt, result), ensure_ascii=False), flush=True)
        return
    print("" if shown else result.text, flush=True)
    for line in closing_lines(result):
        print(line, file=sys.stderr, flush=True)


def closing_lines(result: ChatResult) -> list[str]:
    """Lines printed below a reply."""
    calls = [f"calls {call.name}({call.arguments})" for call in result.tool_calls]
    return [*calls, summary(result), *([INEXACT] if result.inexact else [])]


_ENDS: Final = {
    FinishReason.STOP: "ended by itself",
    FinishReason.LENGTH: "stopped at the length limit",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.DEADLINE: "stopped at its deadline",
}


def summary(result: ChatResult) -> str:
    """One line: tokens, finish reason, times, speed, and cost."""
    stats, times = result.speculation_stats, result.timings
    early = f", {stats.shown_tokens} shown early" if stats.shown_tokens else ""
    erased = f", {stats.erased_tokens} corrected" if stats.erased_tokens else ""
    usage = result.usage
    lossy = f", {usage.lossy_tokens} lossy" if usage.lossy_tokens else ""
    thought = f", {usage.reasoning_tokens} of them reasoning" if usage.reasoning_tokens else ""
    parts = [
        f"{in_words(len(result.ids), 'token', 'tokens')}{thought}{early}{erased}{lossy}, "
        f"{_ENDS[result.finish_reason]}"
    ]
    if _is_seen_early(times):
        parts.append(f"first text after {times.provisional_ttft_ms:.0f} ms")
    if times.committed_ttft_ms is not None:
        parts.append(f"first final text after {times.committed_ttft_ms:.0f} ms")
    if times.tokens_per_s:
        parts.append(f"{times.tokens_per_s:.0f} tokens/s")
    if result.usage.cost is not None:
        parts.append(f"costs {result.usage.cost}")
    return " · ".join(parts)


def _is_seen_early(times: ClientTimings) -> bool:
    """Whether provisional text was the first that was seen of a reply, by a millisecond."""
    early, final = times.provisional_ttft_ms, times.committed_ttft_ms
    return early is not None and (final is None or round(early) < round(final))


def in_words(number: int, one: str, more: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else more}"


def as_object(prompt: str, result: ChatResult) -> dict[str, object]:
    """The reply as --json prints it. `text` is the model's own; `content`, `reasoning` and
    `tool_calls` are what was read in it, in a chat with tools. `timings` are the client's own;
    `edge` and `replica` in it are what these measured; `speculation_stats` is what the edge's
    drafts came to."""
    edge, replica = asdict(result.edge_timings), asdict(result.replica_timings)
    logprobs = {"logprobs": logprobs_as_objects(result.logprobs)} if result.logprobs else {}
    return {
        "prompt": prompt,
        "request_id": result.request_id,
        "model": result.model,
        "region": result.region,
        "replica": result.replica,
        "text": result.text,
        "content": result.content,
        "reasoning": result.reasoning,
        "tool_calls": [asdict(call) for call in result.tool_calls],
        "ids": list(result.ids),
        "inexact": result.inexact,
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage),
        "speculation_stats": asdict(result.speculation_stats),
        "timings": asdict(result.timings) | {"edge": edge, "replica": replica},
        **logprobs,
    }
