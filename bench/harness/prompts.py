"""The prompts that benches and the exactness test share: real ones, written for this purpose.

They lie in two folders. Whatever chooses a threshold or a setting by looking at replies uses
`bench/data/tuning`; whatever prints a figure uses `bench/data/held_out`, so that no figure is taken
on prompts to which something was fitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["held_out", "tuning", "all"]
Folder: TypeAlias = Literal["held_out", "tuning"]

_DATA = Path(__file__).parents[1] / "data"
_FOLDERS: dict[Split, tuple[Folder, ...]] = {
    "held_out": ("held_out",),
    "tuning": ("tuning",),
    "all": ("held_out", "tuning"),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message."""

    id: str
    """`class-NN`, unique in both folders and stable."""
    kind: str
    """chat_short, chat_long, code, languages, structured, math or document."""
    text: str


def load_prompts(*kinds: str, split: Split = "held_out") -> tuple[Prompt, ...]:
    """The prompts of a split, all or those of the given kinds, in a fixed order."""
    prompts = [
        Prompt(id=row["id"], kind=row["class"], text=row["prompt"])
        for folder in _FOLDERS[split]
        for path in sorted((_DATA / folder).glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]
    return tuple(prompt for prompt in prompts if not kinds or prompt.kind in kinds)


def interleaved(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The same prompts with the kinds taking turns, so that any first few are a fair sample."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.kind, []).append(prompt)
    longest = max((len(queue) for queue in queues.values()), default=0)
    return tuple(
        queue[turn] for turn in range(longest) for queue in queues.values() if turn < len(queue)
    )


def as_prompt_file(prompts: Sequence[Prompt]) -> str:
    """The text of a prompt file: one JSON string per line."""
    return "".join(json.dumps(prompt.text, ensure_ascii=False) + "\n" for prompt in prompts)
