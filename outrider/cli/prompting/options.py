"""The flags that `outrider chat` and `outrider reference` share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from outrider.cli.model_choice import MODEL_HELP
from outrider.errors import InvalidRequestError, OutriderError
from outrider.models.chat import Message, check_text
from outrider.models.tools import check_tools, tool_text
from outrider.sampling.grammar import JSON_OBJECT, Grammar, GrammarKind
from outrider.sampling.params import MAX_LOGPROBS, SamplingParams
from outrider.session.types import ScoredToken, TokenLogprobs

OnText: TypeAlias = Callable[[str], None] | None
"""Gets text as it becomes final."""

Prompt = Annotated[str | None, typer.Option(help="A prompt; `-` reads it from standard input.")]
PromptFile = Annotated[
    Path | None,
    typer.Option(help="File with a prompt per line, each a JSON string; answered in order."),
]
System = Annotated[str | None, typer.Option(help="The system message.")]
Model = Annotated[str, typer.Option(help=f"{MODEL_HELP} Without it: the default model.")]
Temperature = Annotated[
    float, typer.Option(min=0, max=2, help="Sampling temperature; 0 is greedy.")
]
TopP = Annotated[
    float,
    typer.Option(min=0, max=1, help="Sample from the most likely tokens up to this probability."),
]
TopK = Annotated[
    int,
    typer.Option(min=0, max=(1 << 31) - 1, help="Sample from the k most likely tokens; 0: all."),
]
_IN_CONVERSATION = (
    "Without --temperature, --top-p and --top-k, a conversation uses the model's own settings "
    "(`/stats` shows them), and single prompts are greedy."
)
TemperatureOrSuggested = Annotated[
    float | None,
    typer.Option(min=0, max=2, help=f"Sampling temperature; 0 is greedy. {_IN_CONVERSATION}"),
]
TopPOrSuggested = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Sample from the most likely tokens up to this probability."),
]
TopKOrSuggested = Annotated[
    int | None,
    typer.Option(min=0, max=(1 << 31) - 1, help="Sample from the k most likely tokens; 0: all."),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=(1 << 64) - 1, help="Seed of sampled replies: the same seed gives the same text."
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, max=(1 << 31) - 1, help="Longest reply, in tokens.")]
MaxThinkingTokens = Annotated[
    int,
    typer.Option(
        min=-1,
        max=(1 << 31) - 1,
        help="Most tokens of reasoning, at which it is ended; -1: no limit.",
    ),
]
JsonSchema = Annotated[
    Path | None, typer.Option(help="Make replies follow the JSON schema in this file.")
]
JsonObject = Annotated[bool, typer.Option("--json-object", help="Make replies JSON objects.")]
Regex = Annotated[str | None, typer.Option(help="Make replies match this regular expression.")]
Lark = Annotated[
    Path | None, typer.Option(help="Make replies follow the Lark grammar in this file.")
]
Tools = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with the tools that the model may call: a list of objects with name, "
        "description and parameters, or the list that OpenAI's API takes."
    ),
]
TemplateVariables = Annotated[
    str,
    typer.Option(
        help="JSON object with variables for the model's chat template, such as "
        "'{\"enable_thinking\": false}'."
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print a JSON object per prompt, with text, ids, finish_reason and timings."
    ),
]
Logprobs = Annotated[
    int,
    typer.Option(
        min=-1,
        max=MAX_LOGPROBS,
        help="With --json: print the log probability of each token, and of this many likely "
        "alternatives; -1: none.",
    ),
]


NoPrompt: TypeAlias = InvalidRequestError
"""Stands for a line of --prompt-file without a valid prompt; its message gives the reason."""


def read_prompts(
    text: str | None, prompt: str | None, prompt_file: Path | None
) -> list[str | NoPrompt]:
    """The prompts of the command line, by argument or flag. Raises InvalidRequestError."""
    if sum(given is not None for given in (text, prompt, prompt_file)) > 1:
        raise InvalidRequestError("give one of: a prompt as argument, --prompt, --prompt-file")
    if prompt_file is not None:
        return _from_file(prompt_file)
    one = _from_stdin() if prompt == "-" else prompt if prompt is not None else text
    if one is None:
        return []
    check_text(one)
    return [one]


def piped_prompt() -> str:
    """Standard input as one prompt, without the end of its last line. Raises
    InvalidRequestError."""
    text = _from_stdin().removesuffix("\n")
    if not text.strip():
        raise InvalidRequestError(
            "no prompt was given; give a prompt as argument, with --prompt or --prompt-file, or "
            "pipe one in; a conversation needs a terminal"
        )
    check_text(text)
    return text


def read_tools(path: Path | None) -> tuple[str, ...]:
    """The tools of a file, as canonical texts. Raises InvalidRequestError."""
    if path is None:
        return ()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, list) or not found:
        raise InvalidRequestError(f"{path} does not hold a list of tools; put them in [ and ]")
    return check_tools([tool_text(tool) for tool in found])


def _from_stdin() -> str:
    try:
        return typer.get_text_stream("stdin").read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8 text: {error}") from error


def read_text(path: Path) -> str:
    """A file's text. Raises InvalidRequestError."""
    try:
        return path.read_bytes().decode()  # with its line ends as they are
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8 text: {error}") from error


def _from_file(path: Path) -> list[str | NoPrompt]:
    # Not splitlines: U+2028 and its like may stand within a JSON string.
    lines = read_text(path).split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InvalidRequestError(f"{path} holds no prompt; one JSON string per line is needed")
    return [_from_line(line, f"{path}, line {number}") for number, line in numbered]


def _from_line(line: str, where: str) -> str | NoPrompt:
    try:
        prompt = json.loads(line)
        if not isinstance(prompt, str):
            return NoPrompt(f"{where} is JSON, but not a string; put the prompt in quotes")
        check_text(prompt)
    except (ValueError, RecursionError) as error:
        return NoPrompt(f"{where} is not a JSON string: {error}")
    except InvalidRequestError as error:
        return NoPrompt(f"{where}: {error.message}")
    return prompt


def report_failure(prompt: str | NoPrompt, error: OutriderError, *, as_json: bool) -> None:
    """Report that one of several prompts has no answer."""
    print(f"outrider: {error.message}", file=sys.stderr, flush=True)
    if as_json:
        told = {"reason": error.reason, "message": error.message}
        named = {} if isinstance(prompt, NoPrompt) else {"prompt": prompt}
        print(json.dumps({**named, "error": told}, ensure_ascii=False), flush=True)


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
    num_logprobs: int = -1,
    grammar: Grammar | None = None,
    max_thinking_tokens: int = -1,
) -> SamplingParams:
    """Validated sampling values of the flags. Raises InvalidSamplingError."""
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=max_tokens,
        acceptance_threshold=acceptance_threshold,
        num_logprobs=num_logprobs,
        grammar=grammar,
        max_thinking_tokens=max_thinking_tokens,
    )


def check_logprobs(num_logprobs: int, *, as_json: bool) -> None:
    """Log probabilities have no place in plain text. Raises InvalidRequestError."""
    if num_logprobs >= 0 and not as_json:
        raise InvalidRequestError("--logprobs needs --json")


def logprobs_as_objects(logprobs: Iterable[TokenLogprobs | None]) -> list[object]:
    """For --json, as in OpenAI's API, with the ids; null where they are not known."""
    return [
        None
        if at is None
        else {**_as_object(at.chosen), "top_logprobs": [_as_object(token) for token in at.top]}
        for at in logprobs
    ]


def _as_object(token: ScoredToken) -> dict[str, object]:
    """A token as printed by --json. `token` is for people: half a character has bytes but no
    text."""
    return {
        "id": token.id,
        "token": token.text.decode(errors="replace"),
        "bytes": list(token.text),
        "logprob": token.logprob,
    }


def grammar(
    json_schema: Path | None, regex: str | None, lark: Path | None, *, json_object: bool
) -> Grammar | None:
    """The grammar of the flags, of which at most one may be given. Raises InvalidRequestError."""
    if sum((json_schema is not None, regex is not None, lark is not None, json_object)) > 1:
        raise InvalidRequestError("give one of: --json-schema, --json-object, --regex, --lark")
    if json_schema is not None:
        return Grammar(GrammarKind.JSON_SCHEMA, read_text(json_schema))
    if lark is not None:
        return Grammar(GrammarKind.LARK, read_text(lark))
    if regex is not None:
        return Grammar(GrammarKind.REGEX, regex)
    return JSON_OBJECT if json_object else None
