"""What `outrider chat` prints of a reply: its text, how long it took, or all of it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from outrider.cli.prompting.options import logprobs_as_objects
from outrider.cli.prompting.painter import Painter

if TYPE_CHECKING:
    from outrider.client import ChatResult, Event, Transcript

INEXACT: Final = (
    "inexact: a replica was lost, and one that computes differently went on with the reply"
)
"""Said of a reply that is not what one model alone would have written."""


def follow(painter: Painter, transcript: Transcript, event: Event, *, shown: bool) -> None:
    """Take an event of a reply. What it brought is painted if the reply is `shown`; that it was
    interrupted is said in any case."""
    # Imported here: the other roles' images have the command, and not the client's packages.
    from outrider.client import Interrupted, Resumed

    before = len(transcript.committed)
    transcript.apply(event)
    match event:
        case Interrupted():
            notice(painter, "interrupted; reconnecting", shown=shown)
        case Resumed(pause_ms=pause_ms):
            notice(painter, f"back after {pause_ms / 1000:.1f} s", shown=shown)
        case _ if shown:
            fresh = transcript.committed[before:]
            paint(painter, fresh, transcript.provisional, transcript.lossy_spans)


def paint(
    painter: Painter, committed: str, provisional: str, marked: Sequence[tuple[int, int]]
) -> None:
    """Show what is new; only a terminal shows what may be taken back, and what is marked."""
    tty = sys.stdout.isatty()
    sys.stdout.write(painter.paint(committed, provisional, marked) if tty else committed)
    sys.stdout.flush()


def notice(painter: Painter, text: str, *, shown: bool) -> None:
    """Say something in the middle of a reply. Where it is `shown` on a terminal, behind the final
    text, until more of it comes; otherwise on standard error."""
    if not (shown and sys.stdout.isatty()):
        print(f"outrider: {text}", file=sys.stderr, flush=True)
        return
    sys.stdout.write(painter.paint("", f" [{text}]"))
    sys.stdout.flush()


def break_off(painter: Painter, transcript: Transcript) -> None:
    """The reply ended before it was whole: what is not final goes, what follows has a new line."""
    if transcript.text:
        print(painter.paint("", "") if sys.stdout.isatty() else "", flush=True)


def report(prompt: str, result: ChatResult, *, as_json: bool, shown: bool) -> None:
    """One reply is whole; `shown` is whether its text was painted as it came."""
    if as_json:
        print(json.dumps(as_object(prompt, result), ensure_ascii=False), flush=True)
        return
    print("" if shown else result.text, flush=True)
    for call in result.tool_calls:
        print(f"calls {call.name}({call.arguments})", file=sys.stderr, flush=True)
    print(summary(result), file=sys.stderr, flush=True)
    if result.inexact:
        print(INEXACT, file=sys.stderr, flush=True)


def summary(result: ChatResult) -> str:
    """One line: times, speed, tokens, what it costs, and why it ended."""
    times = result.timings
    stats = result.speculation_stats
    early = f" · {stats.shown_tokens} shown early" if stats.shown_tokens else ""
    erased = f" · {stats.erased_tokens} taken back" if stats.erased_tokens else ""
    lossy = f" · {len(result.lossy)} lossy" if result.lossy else ""
    cost = f" · {result.usage.cost}" if result.usage.cost is not None else ""
    return (
        f"first provisional {_ms(times.provisional_ttft_ms)} · "
        f"first committed {_ms(times.committed_ttft_ms)} · {times.tokens_per_s:.0f} tokens/s · "
        f"{len(result.ids)} tokens{early}{erased}{lossy}{cost} · {result.finish_reason}"
    )


def as_object(prompt: str, result: ChatResult) -> dict[str, object]:
    """The reply as --json prints it. `text` is the model's own; `content`, `reasoning` and
    `tool_calls` are what was read in it, in a chat with tools. `timings` are the client's own;
    `edge` and `replica` in it are what these measured; `speculation_stats` is what the edge's
    drafts came to."""
    edge, replica = asdict(result.edge_timings), asdict(result.replica_timings)
    logprobs = {"logprobs": logprobs_as_objects(result.logprobs)} if result.logprobs else {}
    return {
        "prompt": prompt,
        "text": result.text,
        "content": result.content,
        "reasoning": result.reasoning,
        "tool_calls": [asdict(call) for call in result.tool_calls],
        "ids": list(result.ids),
        "lossy": list(result.lossy),
        "inexact": result.inexact,
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage),
        "speculation_stats": asdict(result.speculation_stats),
        "timings": asdict(result.timings) | {"edge": edge, "replica": replica},
        **logprobs,
    }


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} ms"
