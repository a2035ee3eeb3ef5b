"""`outrider chat`: talk to a mesh over QUIC, interactively or in one shot."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import edge_choice
from outrider.cli.edge_choice import Caller, EdgeAddress
from outrider.cli.local.state import StateDir, default_state_dir
from outrider.cli.model_choice import is_name, served_name
from outrider.cli.prompting import options
from outrider.cli.prompting.conversation import Conversation, Settings
from outrider.cli.prompting.output import ReplyView, report, terminal_size
from outrider.cli.prompting.painter import Painter
from outrider.cli.prompting.sampling_choice import SamplingChoice, choose_sampling
from outrider.cli.prompting.terminal_input import Interrupts, Prompts, typing_hidden
from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    PermissionDeniedError,
    UnavailableError,
    UnknownModelError,
)
from outrider.models.chat import Message
from outrider.models.template_variables import check_variables, read_variables
from outrider.sampling.params import SamplingParams

_PATIENCE_S = 120.0
"""A person sees that it is interrupted, and has Ctrl-C."""
_OVER_TCP = "outrider: QUIC does not get through; this goes over TCP"

if TYPE_CHECKING:
    from outrider.client import ChatResult, Client


class SpeculationMode(StrEnum):
    """Source of drafts."""

    on = "on"
    off = "off"
    region_only = "region_only"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How every chat of the command is asked for, besides its messages and settings."""

    provisional: bool
    speculation: SpeculationMode
    thin: bool
    caller: Caller = field(default_factory=Caller)
    prediction: str = ""
    """Expected text of the replies."""
    tools: tuple[str, ...] = ()
    tool_choice: str = ""
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    edge_list_keys: tuple[str, ...] = ()
    """Whose list of edges is used beside the edge that was named."""


_AcceptanceThreshold = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Lossy mode: also accept drafts at least this likely, and count them; 0: exact.",
    ),
]
_Provisional = Annotated[
    bool, typer.Option(help="Show likely text before it is final, dimmed, and correct it in place.")
]
_Speculation = Annotated[
    SpeculationMode,
    typer.Option(
        help="Have drafts of edge and region verified (`on`), or of the region alone, where the "
        "edge's are only shown (`region_only`), or none (`off`)."
    ),
]
_Thin = Annotated[bool, typer.Option("--thin", help="Send text and let the region tokenize it.")]
_Prediction = Annotated[
    Path | None,
    typer.Option(
        help="File with the expected reply, such as a text to edit: the parts that are right "
        "arrive faster, and the reply stays the same."
    ),
]
_ToolChoice = Annotated[
    str, typer.Option(help="`auto`, `none`, `required`, or the name of the tool to call.")
]
_History = Annotated[
    bool, typer.Option(help="Keep typed messages, for the arrow keys in later conversations.")
]
_AnswerAhead = Annotated[
    bool,
    typer.Option(
        "--answer-ahead",
        help="Send messages to the edge while you type them, so that the answer is begun before "
        "you press Enter; it is shown only if you send exactly that text. Without this nothing "
        "leaves this machine before Enter.",
    ),
]
_EdgeListKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--edge-list-key",
        help="Public key of the mesh's list of edges: if the edge of --edge is lost, chats "
        "continue at another edge of the list. Repeatable.",
    ),
]
_Parallel = Annotated[
    int, typer.Option(min=1, max=1024, help="Prompts of --prompt-file to answer at once.")
]


def chat(
    text: Annotated[str | None, typer.Argument(help="A prompt, as --prompt.")] = None,
    prompt: options.Prompt = None,
    prompt_file: options.PromptFile = None,
    system: options.System = None,
    model: options.Model = "",
    temperature: options.TemperatureOrSuggested = None,
    top_p: options.TopPOrSuggested = None,
    top_k: options.TopKOrSuggested = None,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 256,
    max_thinking_tokens: options.MaxThinkingTokens = -1,
    json_schema: options.JsonSchema = None,
    json_object: options.JsonObject = False,
    regex: options.Regex = None,
    lark: options.Lark = None,
    acceptance_threshold: _AcceptanceThreshold = 0.0,
    as_json: options.Json = False,
    edge: edge_choice.Edge = None,
    edge_list_keys: _EdgeListKeys = None,
    ca: edge_choice.Ca = None,
    insecure: edge_choice.Insecure = False,
    provisional: _Provisional = True,
    speculation: _Speculation = SpeculationMode.on,
    thin: _Thin = False,
    prediction: _Prediction = None,
    logprobs: options.Logprobs = -1,
    parallel: _Parallel = 1,
    history: _History = True,
    answer_ahead: _AnswerAhead = False,
    key_file: edge_choice.KeyFile = None,
    api_key: edge_choice.ApiKey = None,
    user: edge_choice.User = "",
    tools: options.Tools = None,
    tool_choice: _ToolChoice = "auto",
    template_variables: options.TemplateVariables = "",
    state_dir: StateDir = None,
) -> None:
    """Chat with a mesh: hold a conversation, or get one answer to a prompt.

    Piped input is a prompt. Final text goes to standard output, timings go to standard error. A
    terminal also shows likely text, dimmed, before it is final. With tools, a conversation asks you
    for the result of each call.
    """
    if edge_list_keys and edge is None:
        raise InvalidRequestError("--edge-list-key is for a mesh elsewhere; give --edge too")
    state = (state_dir or default_state_dir()).resolve()
    chosen = edge_choice.choose(edge, ca, key_file, api_key, user, state_dir, insecure=insecure)
    options.check_logprobs(logprobs, as_json=as_json)
    grammar = options.grammar(json_schema, regex, lark, json_object=json_object)
    is_sampling_given = any(value is not None for value in (temperature, top_p, top_k))
    greedy = SamplingParams()
    params = options.sampling(
        greedy.temperature if temperature is None else temperature,
        greedy.top_p if top_p is None else top_p,
        greedy.top_k if top_k is None else top_k,
        *(seed, max_tokens, acceptance_threshold, logprobs, grammar, max_thinking_tokens),
    )
    prompts: list[str | options.NoPrompt] = options.read_prompts(text, prompt, prompt_file)
    if not prompts and not sys.stdin.isatty():
        prompts = [options.piped_prompt()]
    if as_json and not prompts:
        raise InvalidRequestError("--json answers prompts; give --prompt or --prompt-file")
    name = _name_to_ask(model, state, is_here=chosen.is_here)
    expected = "" if prediction is None else options.read_text(prediction)
    known = options.read_tools(tools)
    choice = tool_choice if known else ""
    variables = read_variables(check_variables(template_variables))
    wanted = Wanted(
        *(provisional, speculation, thin, chosen.caller, expected, known, choice, variables),
        edge_list_keys=tuple(edge_list_keys or ()),
    )
    command = ChatCommand(chosen.address, wanted)
    settings = Settings(name, system, params)
    if prompts:
        answering = command.answer(prompts, settings, as_json=as_json, parallel=parallel)
    else:
        check = partial(_name_to_ask, state=state, is_here=chosen.is_here)
        kept = state / "chat_history" if history else None
        suggested = not is_sampling_given
        answering = command.converse(
            settings, check, kept, is_suggested=suggested, answers_ahead=answer_ahead
        )
    raise typer.Exit(asyncio.run(answering))


def _name_to_ask(model: str, state: Path, *, is_here: bool) -> str:
    """The name of a model for the mesh that is asked. Raises InvalidRequestError for one that it
    cannot know, UnknownModelError for one that the mesh here does not serve."""
    if is_here:
        return served_name(model, state / "config" / "edge.toml")
    if not is_name(model):
        raise InvalidRequestError(
            "with --edge, give a model's name; a mesh elsewhere has no access to your files"
        )
    return model


_AHEAD = (
    "What you type goes to the edge as you type it (--answer-ahead), commands excepted. The answer "
    "begins before you press Enter and is shown only if you send that text."
)


class ChatCommand:
    """One run of the command."""

    def __init__(self, address: EdgeAddress, wanted: Wanted) -> None:
        self._address = address
        self._wanted = wanted
        self._interrupts = Interrupts()
        self._has_told_way = False

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        # Imported here: the other roles' images run `outrider serve` without the client's packages.
        from outrider.client import ReconnectPolicy, connect

        where = self._address
        patient = ReconnectPolicy(give_up_after_s=_PATIENCE_S)
        caller = self._wanted.caller
        async with connect(
            where.url,
            ca=where.ca,
            insecure=where.insecure,
            reconnect=patient,
            key=caller.key,
            user=caller.user,
            edge_list_keys=self._wanted.edge_list_keys,
        ) as client:
            yield client

    def _tell_way(self, client: Client) -> None:
        """Say once that chats go over TCP: the first words come later than over QUIC."""
        if client.way == "TCP" and not self._has_told_way:
            self._has_told_way = True
            print(_OVER_TCP, file=sys.stderr, flush=True)

    async def answer(
        self,
        prompts: Sequence[str | options.NoPrompt],
        settings: Settings,
        *,
        as_json: bool,
        parallel: int,
    ) -> int:
        """Answer every prompt; output keeps their order. A refused prompt is reported, and the
        others continue. Returns the exit status: 1 if a prompt has no answer. Raises the error of
        an only prompt, and UnavailableError if the mesh can no longer be reached."""
        show = not as_json and parallel == 1
        gate = asyncio.Semaphore(parallel)
        status = 0

        async with contextlib.AsyncExitStack() as stack:
            if show:
                stack.enter_context(typing_hidden())
            client = await stack.enter_async_context(self._client())

            async def one(prompt: str | options.NoPrompt) -> ChatResult:
                if isinstance(prompt, options.NoPrompt):
                    raise prompt
                async with gate:
                    messages = options.conversation(settings.system, prompt)
                    return await self._stream(client, messages, settings, show=show)

            tasks = [asyncio.create_task(one(p)) for p in prompts]
            try:
                for prompt, task in zip(prompts, tasks, strict=True):
                    try:
                        report(str(prompt), await task, as_json=as_json, shown=show)
                    except UnavailableError:
                        raise
                    except OutriderError as error:
                        if len(prompts) == 1:
                            raise
                        status = 1
                        options.report_failure(prompt, error, as_json=as_json)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return status

    async def converse(
        self,
        settings: Settings,
        check_model: Callable[[str], str],
        history: Path | None,
        *,
        is_suggested: bool,
        answers_ahead: bool = False,
    ) -> int:
        """Hold a conversation at the terminal; `history` keeps the lines typed. `is_suggested`:
        replies are sampled by the model's suggestion rather than `settings`. `answers_ahead`: its
        user agreed that messages are sent while they are typed. Returns the exit status 0."""
        prompts = Prompts(history)
        with typing_hidden(), self._interrupts.listening():
            async with self._client() as client:

                async def reply(
                    messages: list[Message], settings: Settings, painter: Painter
                ) -> ChatResult:
                    result = await self._stream(client, messages, settings, painter, show=True)
                    print(flush=True)
                    return result

                async def check(model: str) -> str:
                    name = check_model(model)
                    listed = [it.name for it in (await client.describe()).models]
                    if name in listed:
                        return name
                    # An edge lists what clients without a key may use; with one it may be more.
                    if not self._wanted.caller.key:
                        has = ", ".join(listed) or "none"
                        raise UnknownModelError(f"the edge has no model {name!r}; it has {has}")
                    with contextlib.suppress(PermissionDeniedError):  # a key for chats alone
                        await client.tokenize("", model=name)
                    return name

                async def choose(model: str) -> SamplingChoice:
                    return choose_sampling(model, (await client.describe()).models)

                def typed(before: list[Message], settings: Settings) -> Callable[[str], None]:
                    wanted = self._wanted
                    return client.typing(
                        before,
                        ahead=True,
                        sampling=settings.sampling,
                        model=settings.model,
                        tools=wanted.tools,
                        tool_choice=wanted.tool_choice,
                        template_variables=wanted.template_variables,
                    ).update

                chosen = choose if is_suggested else None
                told = typed if answers_ahead else None
                if answers_ahead:
                    print(_AHEAD, file=sys.stderr, flush=True)
                await Conversation(prompts, reply, settings, check, chosen, told).run()
        return 0

    async def _stream(
        self,
        client: Client,
        messages: list[Message],
        settings: Settings,
        painter: Painter | None = None,
        *,
        show: bool,
    ) -> ChatResult:
        self._tell_way(client)
        view = ReplyView(
            painter or Painter(*terminal_size()),
            shown=show,
            give_up_after_s=_PATIENCE_S,
            clock=time.time,
        )
        async with client.chat(
            messages,
            sampling=settings.sampling,
            model=settings.model,
            provisional=self._wanted.provisional,
            speculation=self._wanted.speculation.value,
            thin=self._wanted.thin,
            prediction=self._wanted.prediction,
            tools=self._wanted.tools,
            tool_choice=self._wanted.tool_choice,
            template_variables=self._wanted.template_variables,
        ) as stream:
            try:
                with self._interrupts.stopping(stream.cancel):
                    async for event in stream:
                        view.follow(event)
                    return await stream.result()
            finally:
                view.break_off()
