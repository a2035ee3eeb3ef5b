"""The prompts of all benchmarks and of the exactness test: written ones, and any number of composed
ones.

Written prompts lie in three folders. Whatever chooses a threshold or a setting by looking at
replies uses `bench/data/tuning`. `bench/data/held_out` is for figures that no choice hangs on: who
chose the thresholds of what is shown early had some of them in sight. Whatever claims a figure for
prompts that nobody has seen uses `bench/data/test`: written after all of these choices, and frozen.
A prompt belongs to it by lying there; it may not be changed, moved or looked at for a choice, and
nothing that tunes or trains may read it (`tests/bench/harness/test_prompts.py`).

A `PromptSupply` gives out each user message once: a run that asked the same twice would let a
system that remembers earlier replies look fast. Chats and code begin with the prompts of
`bench/data/held_out` and go on with composed ones: every ask with every topic, or with every task
and language (`bench/data/composed_*.json`), in a fixed random order. Different prompts share their
wording, as users' do. Documents are pieces of the documentation that comes with every Python
interpreter, cut at paragraphs: first the language reference (`pydoc_data.topics`), then what the
standard library says about itself.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Literal, TypeAlias

Split: TypeAlias = Literal["held_out", "tuning", "test", "all"]
Folder: TypeAlias = Literal["held_out", "tuning", "test"]

_DATA = Path(__file__).parents[1] / "data"
_FOLDERS: dict[Split, tuple[Folder, ...]] = {
    "held_out": ("held_out",),
    "tuning": ("tuning",),
    "test": ("test",),
    "all": ("held_out", "tuning", "test"),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message."""

    id: str
    """`class-NN`, unique in all folders and stable."""
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


def written_texts() -> frozenset[str]:
    """Texts of all folders, for callers that have to leave them out."""
    return frozenset(prompt.text for prompt in load_prompts(split="all"))


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


KINDS = ("chat", "code", "document")
DOCUMENT_CHARS = 1150
"""About 300 tokens."""
LONG_DOCUMENT_CHARS = 5600
"""About 1,500 tokens."""

_WRITTEN = {
    "chat": ("chat_short", "chat_long", "languages", "structured", "math"),
    "code": ("code",),
}


class PromptSupply:
    """Prompts of one kind: chat, code, document or long_document."""

    def __init__(self, kind: str, seed: int = 20261121) -> None:
        """Raises KeyError for an unknown kind."""
        self.kind = kind
        self._prompts = _without_repeats(_MAKERS[kind](random.Random(seed)))
        self.num_given = 0

    def take(self, count: int) -> list[str]:
        """The next `count` prompts. Raises RuntimeError if fewer are left."""
        taken = list(itertools.islice(self._prompts, count))
        self.num_given += len(taken)
        if len(taken) < count:
            raise RuntimeError(
                f"there are only {self.num_given} different {self.kind} prompts: ask for fewer "
                "rounds, or add to bench/data/composed_*.json"
            )
        return taken


def _composed(kind: str, rng: random.Random) -> Iterator[str]:
    parts = _parts(kind)
    fillers = [key for key in parts if key != "asks"]
    combined = list(itertools.product(parts["asks"], *(parts[key] for key in fillers)))
    rng.shuffle(combined)
    names = [key.removesuffix("s") for key in fillers]
    written = (prompt.text for prompt in interleaved(load_prompts(*_WRITTEN[kind])))
    filled = (ask.format(**dict(zip(names, rest, strict=True))) for ask, *rest in combined)
    return itertools.chain(written, filled)


def _without_repeats(prompts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def _documents(num_chars: int, rng: random.Random) -> Iterator[str]:
    pages = [topics[name] for name in sorted(topics)]
    pieces = [piece for page in pages for piece in _pieces(page, num_chars)]
    rng.shuffle(pieces)
    modules = sorted(sys.stdlib_module_names)
    rng.shuffle(modules)
    more = (piece for name in modules for piece in _pieces(_docstrings(name), num_chars))
    asks = itertools.cycle(_parts("document")["asks"])
    return (f"{piece}\n\n{next(asks)}" for piece in itertools.chain(pieces, more))


def _docstrings(module: str) -> str:
    """All docstrings of a module's source, which is read and not run; "" if it has none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, owners))
    return "\n\n".join(text for text in found if text)


def _pieces(text: str, num_chars: int) -> Iterator[str]:
    """Runs of whole paragraphs of num_chars to twice that, and nothing shorter."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
        if len(piece) >= num_chars:
            if len(piece) <= 2 * num_chars:
                yield piece
            piece = ""


def _parts(kind: str) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(
        (_DATA / f"composed_{kind}.json").read_text(encoding="utf-8")
    )
    return parts


_MAKERS = {
    "chat": lambda rng: _composed("chat", rng),
    "code": lambda rng: _composed("code", rng),
    "document": lambda rng: _documents(DOCUMENT_CHARS, rng),
    "long_document": lambda rng: _documents(LONG_DOCUMENT_CHARS, rng),
}
