"""The prompts that benches and the exactness test share: real ones, written for this purpose."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message."""

    id: str
    """`class-NN`, unique and stable."""
    kind: str
    """chat_short, chat_long, code, languages, structured, math or document."""
    text: str


def load_prompts(*kinds: str) -> tuple[Prompt, ...]:
    """All prompts, or those of the given kinds, in a fixed order."""
    prompts = [
        Prompt(id=row["id"], kind=row["class"], text=row["prompt"])
        for path in sorted(_DATA.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]
    return tuple(prompt for prompt in prompts if not kinds or prompt.kind in kinds)


def interleaved(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """The same prompts with the kinds taking turns, so that any first few are a fair sample."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.kind, []).append(prompt)
    longest = max((len(queue) for queue in queues.values()), default=0)
    return tuple(
        queue[turn] for turn in range(longest) for queue in queues.values() if turn < len(queue)
    )


def as_prompt_file(prompts: tuple[Prompt, ...]) -> str:
    """The text of a prompt file: one JSON string per line."""
    return "".join(json.dumps(prompt.text, ensure_ascii=False) + "\n" for prompt in prompts)
