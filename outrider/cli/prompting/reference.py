"""`outrider reference`: the model's reply without mesh, drafts and batching."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from outrider.cli.model_choice import choose
from outrider.cli.prompting import options
from outrider.errors import InvalidRequestError, OutriderError
from outrider.models.store import ModelStore, default_root
from outrider.models.template_variables import check_variables
from outrider.models.tools import tool_name
from outrider.models.vocabulary import load_vocabulary
from outrider.reply_parsing.parser import read_reply
from outrider.reply_parsing.reasoning import begins_in_reasoning
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session.types import ScoredToken, TokenLogprobs
from outrider.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from outrider.engines.base import Engine
    from outrider.models.vocabulary import Vocabulary
    from outrider.reply_parsing.formats import ReplyFormat
    from services.inference.grammars.token_table import TokenTable
    from services.inference.reference import ReferenceReply


def reference(
    text: Annotated[str | None, typer.Argument(help="A prompt, as --prompt.")] = None,
    prompt: options.Prompt = None,
    prompt_file: options.PromptFile = None,
    system: options.System = None,
    model: options.Model = "",
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 256,
    max_thinking_tokens: options.MaxThinkingTokens = -1,
    json_schema: options.JsonSchema = None,
    json_object: options.JsonObject = False,
    regex: options.Regex = None,
    lark: options.Lark = None,
    as_json: options.Json = False,
    logprobs: options.Logprobs = -1,
    tools: options.Tools = None,
    template_variables: options.TemplateVariables = "",
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Number of engine threads; 0: one per core.")
    ] = 0,
    engine: Annotated[
        str, typer.Option(help="The engine of the mesh's replicas: `openvino` or `torch`.")
    ] = "openvino",
) -> None:
    """Answer prompts with the engine alone; a mesh gives the same text, byte for byte."""
    options.check_logprobs(logprobs, as_json=as_json)
    grammar = options.grammar(json_schema, regex, lark, json_object=json_object)
    params = options.sampling(
        *(temperature, top_p, top_k, seed, max_tokens),
        num_logprobs=logprobs,
        grammar=grammar,
        max_thinking_tokens=max_thinking_tokens,
    )
    prompts = options.read_prompts(text, prompt, prompt_file)
    if not prompts:
        raise InvalidRequestError("give a prompt: outrider reference --prompt 'hello'")
    known = options.read_tools(tools)
    variables = check_variables(template_variables)
    with _loaded(model, engine, threads, params, known, variables) as runner:
        status = 0
        for one in prompts:
            try:
                if isinstance(one, options.NoPrompt):
                    raise one
                _answer(runner, system, one, as_json=as_json)
            except OutriderError as error:
                if len(prompts) == 1:
                    raise
                status = 1
                options.report_failure(one, error, as_json=as_json)
    raise typer.Exit(status)


@dataclass(frozen=True, slots=True)
class _Runner:
    engine: Engine
    vocabulary: Vocabulary
    sampling: SamplingParams
    table: TokenTable | None
    """Of a reply that is constrained."""
    tools: tuple[str, ...] = ()
    variables: str = ""
    """For the chat template."""
    reply_format: ReplyFormat | None = None
    """How to read tool calls and reasoning; None: all of a reply is its content."""

    def prompt_ids(self, system: str | None, prompt: str) -> list[int]:
        messages = options.conversation(system, prompt)
        return self.vocabulary.encode_chat(messages, self.tools, self.variables)

    def format_of(self, prompt: Sequence[int]) -> ReplyFormat | None:
        """How to read the reply to a prompt of these ids."""
        found = self.reply_format
        if found is None or found.reasoning is None:
            return found
        is_open = begins_in_reasoning(found.reasoning, prompt, self.vocabulary.token_bytes)
        return replace(found, begins_in_reasoning=is_open)

    def answer(self, ids: Sequence[int], on_text: options.OnText) -> ReferenceReply:
        from services.inference.reference import generate

        constraint = None
        if self.table is not None:
            from services.inference.grammars.reply_constraint import constraint_of

            constraint = constraint_of(self.table, self.sampling, ids)
        return generate(
            self.engine, ids, self.sampling, self._reply, constraint=constraint, on_text=on_text
        )

    def named(self, at: TokenLogprobs) -> TokenLogprobs:
        """With the tokens' texts."""
        return TokenLogprobs(self._named(at.chosen), tuple(map(self._named, at.top)))

    def _named(self, token: ScoredToken) -> ScoredToken:
        return token._replace(text=self.vocabulary.text_bytes(token.id))

    def _reply(self, params: SamplingParams) -> ReplyText:
        detokenizer = self.vocabulary.detokenizer(keep_special=params.special_tokens)
        return ReplyText(params, self.vocabulary.stop_ids, detokenizer)


@contextmanager
def _loaded(
    model: str,
    engine_name: str,
    threads: int,
    sampling: SamplingParams,
    tools: tuple[str, ...],
    variables: str,
) -> Iterator[_Runner]:
    from outrider.engines.config import EngineConfig, EngineName
    from outrider.engines.factory import create_engine

    # To standard error: standard output is the reply's.
    configure_logging("reference", "warning")
    spec = choose(model).spec
    vocabulary = load_vocabulary(spec, ModelStore(default_root()))
    if tools or variables:
        # What the template refuses need not wait for the engine, which takes seconds.
        vocabulary.encode_chat(options.conversation(None, "?"), tools, variables)
    reply_format = _reply_format(vocabulary, spec.tool_parser, tools)
    if reply_format is not None:
        special = vocabulary.needs_special_tokens(reply_format)
        tags = reply_format.reasoning
        sampling = replace(sampling, special_tokens=special, reasoning_tags=tags)
    table = _table(vocabulary, sampling)
    num_threads = threads or os.cpu_count() or 1
    own: dict[str, Any] = {
        "engine": cast(EngineName, engine_name),
        "model": spec.name,
        "threads": num_threads,
        "max_fixed_rows": 1,
    }
    engine = create_engine(EngineConfig(**spec.engine_settings() | own))
    try:
        yield _Runner(engine, vocabulary, sampling, table, tools, variables, reply_format)
    finally:
        # A native thread that still compiles when the interpreter ends aborts the process.
        engine.close()


def _reply_format(
    vocabulary: Vocabulary, tool_parser: str, tools: tuple[str, ...]
) -> ReplyFormat | None:
    found = vocabulary.reply_format(tool_parser)
    if not tools:
        found = found.without_calls
    if found.call_syntax is None and found.reasoning is None:
        return None
    return replace(found, tool_names=tuple(map(tool_name, tools)))


def _table(vocabulary: Vocabulary, sampling: SamplingParams) -> TokenTable | None:
    """For the constraint of replies, if there is one. Raises InvalidSamplingError for a grammar
    that cannot be compiled, before the engine is loaded."""
    if not sampling.is_constrained:
        return None
    from services.inference.grammars.reply_constraint import constraint_of
    from services.inference.grammars.token_table import TokenTable

    table = TokenTable(vocabulary)
    constraint_of(table, sampling, ())
    return table


def _answer(runner: _Runner, system: str | None, prompt: str, *, as_json: bool) -> None:
    started = time.perf_counter()
    ids = runner.prompt_ids(system, prompt)
    reply = runner.answer(ids, None if as_json else _write)
    total_ms = (time.perf_counter() - started) * 1000
    reply = replace(reply, logprobs=tuple(map(runner.named, reply.logprobs)))
    made = _as_object(prompt, reply, total_ms) | _read(reply.text, runner.format_of(ids))
    print(json.dumps(made, ensure_ascii=False) if as_json else "")
    sys.stdout.flush()


def _read(text: str, reply_format: ReplyFormat | None) -> dict[str, object]:
    """Parts of a reply. Ids of calls are left out: a mesh assigns them."""
    if reply_format is None:
        return {}
    read = read_reply(text, reply_format, seed="")
    calls = [{"name": call.name, "arguments": call.arguments} for call in read.calls]
    return {"content": read.content, "reasoning": read.reasoning, "tool_calls": calls}


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _as_object(prompt: str, reply: ReferenceReply, total_ms: float) -> dict[str, object]:
    logprobs = {"logprobs": options.logprobs_as_objects(reply.logprobs)} if reply.logprobs else {}
    return {
        "prompt": prompt,
        "text": reply.text,
        "ids": list(reply.ids),
        "finish_reason": reply.finish_reason,
        "timings": {
            "total_ms": total_ms,
            "tokens_per_s": len(reply.ids) / max(total_ms / 1000, 1e-9),
        },
        **logprobs,
    }
