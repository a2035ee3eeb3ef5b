"""The flags that `outrider chat` and `outrider reference` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

OnText: TypeAlias = Callable[[str], None] | None
"""Gets text as it becomes final."""

Prompt = Annotated[str | None, typer.Option(help="One prompt; `-` reads standard input.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="One JSON string per line; answered in order.")
]
System = Annotated[str | None, typer.Option(help="System message.")]
Model = Annotated[str, typer.Option(help="Model name; empty: the mesh's default.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest ids up to this probability.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest ids; 0: all.")]
Seed = Annotated[int, typer.Option(help="Same seed, same text.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of a reply.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="One object per prompt: text, ids, finish_reason, timings."),
]


def read_prompts(prompt: str | None, prompt_file: Path | None) -> list[str]:
    """The prompts asked for on the command line. Raises InvalidRequestError."""
    if prompt is not None and prompt_file is not None:
        raise InvalidRequestError("give --prompt or --prompt-file, not both")
    if prompt == "-":
        return [typer.get_text_stream("stdin").read()]
    if prompt is not None:
        return [prompt]
    return _from_file(prompt_file) if prompt_file is not None else []


def _from_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path}: {error}; one JSON string per line is needed") from error
    if not all(isinstance(p, str) for p in prompts):
        raise InvalidRequestError(f"{path}: every line must be a JSON string")
    return prompts


def conversation(system: str | None, prompt: str) -> list[Message]:
    """The messages of a one-shot prompt."""
    head = [Message("system", system)] if system is not None else []
    return [*head, Message("user", prompt)]


def sampling(
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    max_tokens: int,
    acceptance_threshold: float = 0.0,
) -> SamplingParams:
    """Validated sampling values of the flags. Raises InvalidSamplingError."""
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=max_tokens,
        acceptance_threshold=acceptance_threshold,
    )
