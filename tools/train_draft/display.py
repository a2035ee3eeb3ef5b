"""What readers would have been shown of recorded replies, by how bold the display is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from outrider.client.first_word import FirstWord
from services.edge.session.display import DISPLAY_PRESETS, DisplayPolicy
from services.edge.session.events import Commit, Provisional, Retract
from tools.train_draft.calibration import calibration_error, reliability
from tools.train_draft.replay import Seen, Shown

THRESHOLDS: Final = (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8)
"""Of the grid: least survival of first tokens and others alike."""


def policies() -> dict[str, DisplayPolicy]:
    """The grid, and the settings that have names."""
    grid = {
        f"threshold {threshold:g}": DisplayPolicy(threshold=threshold, first_threshold=threshold)
        for threshold in THRESHOLDS
    }
    named = {
        name: DisplayPolicy(threshold=bold.threshold, first_threshold=bold.first_threshold)
        for name, bold in DISPLAY_PRESETS.items()
    }
    return grid | named


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reader saw. Times in milliseconds from the prompt's tokens being known at the edge;
    words as `outrider.client.first_word` has them."""

    shown_before_commit: bool
    """Whether anything was shown before the first final text."""
    first_word_right: bool | None
    """Of the first word shown, if it was shown before it was final; None: it was not."""
    first_stability: float | None
    """The estimated survival of all that was shown first..."""
    first_text_stayed: bool
    """...and whether it became final."""
    shown_chars: int
    erased_chars: int
    staying_word_ms: float
    """When the reply's first word stood on screen to stay."""
    plain_word_ms: float
    """When it was final."""


def outcome_of(shown: Shown) -> Outcome:
    """What the events of a chat amount to."""
    events, display = shown.events, shown.display
    firsts = [(at, e) for at, e in events if isinstance(e, Provisional)][:1]
    commit_s = min((at for at, e in events if isinstance(e, Commit) and e.text), default=0.0)
    word = _first_word(events)
    return Outcome(
        shown_before_commit=any(at < commit_s for at, _ in firsts),
        first_word_right=word.shown_right if word.shown_early else None,
        first_stability=firsts[0][1].stability if firsts else None,
        first_text_stayed=bool(firsts) and _stayed(events, firsts[0]),
        shown_chars=display.shown_chars,
        erased_chars=display.erased_chars,
        staying_word_ms=(word.staying_at or 0.0) * 1e3,
        plain_word_ms=(word.final_at or 0.0) * 1e3,
    )


def _first_word(events: Sequence[Seen]) -> FirstWord:
    """The reply's first word on its reader's screen."""
    word = FirstWord()
    final, provisional, at = "", "", 0.0
    for at, event in events:
        match event:
            case Commit():
                final += event.text
                provisional = provisional[len(event.text) :]
            case Provisional():
                provisional = provisional[: event.erase_to] + event.text
            case Retract(erase_to):
                provisional = provisional[:erase_to]
            case _:
                continue
        word.see(final, provisional, at)
    word.see(final, "", at, is_whole=True)
    return word


def _stayed(events: Sequence[Seen], first: tuple[float, Provisional]) -> bool:
    """Whether all of what was shown first became final before any of it was taken back."""
    left, begun = len(first[1].text), False
    for _, event in events:
        if event is first[1]:
            begun = True
        elif begun and isinstance(event, Commit):
            left -= len(event.text)
        elif begun and isinstance(event, Retract) and event.erase_to < left:
            return False
        if begun and left <= 0:
            return True
    return left <= 0


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Over chats; shares are None where there is nothing to share."""
    firsts = [each.first_word_right for each in outcomes if each.first_word_right is not None]
    shown = sum(each.shown_chars for each in outcomes)
    staying = float(np.mean([each.staying_word_ms for each in outcomes]))
    plain = float(np.mean([each.plain_word_ms for each in outcomes]))
    return {
        "chats": len(outcomes),
        "shown_before_commit": round(
            float(np.mean([each.shown_before_commit for each in outcomes])), 3
        ),
        "first_word_right": round(float(np.mean(firsts)), 3) if firsts else None,
        "taken_back": (
            round(sum(each.erased_chars for each in outcomes) / shown, 3) if shown else None
        ),
        "shown_chars_per_chat": round(shown / len(outcomes), 1),
        "staying_word_ms": round(staying, 1),
        "plain_word_ms": round(plain, 1),
    }


def first_shown(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Whether what is shown first stays as often as was estimated."""
    pairs = [
        (each.first_stability, each.first_text_stayed)
        for each in outcomes
        if each.first_stability is not None
    ]
    if not pairs:
        return {"calibration_error": None, "reliability": []}
    chances = np.array([stability for stability, _ in pairs])
    stayed = np.array([stays for _, stays in pairs])
    return {
        "calibration_error": round(calibration_error(chances, stayed), 3),
        "reliability": reliability(chances, stayed, 5),
    }


Measured = Mapping[tuple[str, float, str], Sequence[Outcome]]
"""Outcomes by kind of reply, round trip in milliseconds, and name of the policy."""


def report(measured: Measured) -> dict[str, Any]:
    """All figures, by kind of reply, then round trip, then policy."""
    found: dict[str, Any] = {}
    for (mode, rtt_ms, policy), outcomes in measured.items():
        at = found.setdefault(mode, {}).setdefault(f"{rtt_ms:g}", {})
        at[policy] = figures(outcomes) | {"first_shown": first_shown(outcomes)}
    return found


def tables(found: Mapping[str, Any]) -> str:
    """The figures as Markdown tables."""
    lines = []
    for mode, by_rtt in found.items():
        lines += [
            f"**What readers would have been shown, {mode}**",
            "",
            "| RTT, ms | policy | chats | show before the commit | first word right | taken back "
            "| shown, chars a chat | staying word, ms | plain word, ms | ratio "
            "| error of the first survival |",
            "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for rtt_ms, by_policy in by_rtt.items():
            for policy, each in by_policy.items():
                ratio = each["staying_word_ms"] / max(1e-9, each["plain_word_ms"])
                lines.append(
                    f"| {rtt_ms} | {policy} | {each['chats']} | {each['shown_before_commit']:.2f} "
                    f"| {_share(each['first_word_right'])} | {_share(each['taken_back'])} "
                    f"| {each['shown_chars_per_chat']:.0f} | {each['staying_word_ms']:.0f} "
                    f"| {each['plain_word_ms']:.0f} | {ratio:.2f} "
                    f"| {_share(each['first_shown']['calibration_error'])} |"
                )
        lines.append("")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
