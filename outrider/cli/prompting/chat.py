"""`outrider chat`: talk to a mesh over QUIC, interactively or in one shot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.access.client_key import KEY_VARIABLE, configured_key
from outrider.cli.local import development_key
from outrider.cli.local.state import StateDir, default_state_dir, running_mesh
from outrider.cli.model_choice import is_name, served_name
from outrider.cli.prompting import options
from outrider.cli.prompting.output import break_off, follow, report
from outrider.cli.prompting.painter import Painter
from outrider.cli.prompting.terminal_input import Interrupts, Lines
from outrider.errors import InvalidRequestError, OutriderError, UnavailableError
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.sampling.params import SamplingParams

_PATIENCE_S = 120.0
"""A person sees that it is interrupted, and has Ctrl-C."""
_HELP = "/reset forgets the conversation, /bye ends it; Ctrl-C stops a reply, or ends it."


if TYPE_CHECKING:
    from outrider.client import ChatResult, Client


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Where the edge is and whom to trust for it."""

    host: str
    port: int
    ca: Path | None
    insecure: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    key: str = field(default="", repr=False)
    user: str = ""


class SpeculationMode(StrEnum):
    """Where drafts come from."""

    on = "on"
    off = "off"
    region_only = "region_only"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How every chat of the command is asked for, besides its messages and sampling."""

    model: str
    provisional: bool
    speculation: SpeculationMode
    thin: bool
    caller: Caller = Caller()
    prediction: str = ""
    """What the replies are expected to be."""
    tools: tuple[str, ...] = ()
    tool_choice: str = ""


_AcceptanceThreshold = Annotated[
    float, typer.Option(help="Lossy: let drafts at least this likely pass, underlined; 0: exact.")
]
_Edge = Annotated[str | None, typer.Option(help="HOST:PORT; default: the mesh of `outrider up`.")]
_Ca = Annotated[Path | None, typer.Option(help="Certificate to trust for the edge.")]
_Insecure = Annotated[bool, typer.Option(help="Trust any certificate.")]
_Provisional = Annotated[
    bool, typer.Option(help="Show text before it is final, dimmed, and correct it in place.")
]
_Speculation = Annotated[
    SpeculationMode, typer.Option(help="Who drafts: edge and region, the region alone, nobody.")
]
_Thin = Annotated[bool, typer.Option("--thin", help="Let the region tokenize.")]
_Prediction = Annotated[
    Path | None,
    typer.Option(
        help="File with the text that the reply is expected to be: right parts of it "
        "come faster, nothing else changes."
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key."),
]
_ApiKey = Annotated[
    str | None,
    typer.Option(
        help="The API key. Others on this machine may see it; better --key-file, the environment's "
        f"{KEY_VARIABLE}, or api_key of the table [client] in ~/.config/outrider/config.toml. "
        "Without any of them: the development key of `outrider up`."
    ),
]
_User = Annotated[str, typer.Option(help="Which of the key's users asks.")]
_ToolChoice = Annotated[
    str, typer.Option(help="auto, none, required, or the name of the tool to call.")
]
_Parallel = Annotated[int, typer.Option(min=1, help="Prompts of --prompt-file answered at once.")]


def chat(
    text: Annotated[str | None, typer.Argument(help="One prompt, like --prompt.")] = None,
    prompt: options.Prompt = None,
    prompt_file: options.PromptFile = None,
    system: options.System = None,
    model: options.Model = "",
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 256,
    json_schema: options.JsonSchema = None,
    json_object: options.JsonObject = False,
    regex: options.Regex = None,
    lark: options.Lark = None,
    acceptance_threshold: _AcceptanceThreshold = 0.0,
    as_json: options.Json = False,
    edge: _Edge = None,
    ca: _Ca = None,
    insecure: _Insecure = False,
    provisional: _Provisional = True,
    speculation: _Speculation = SpeculationMode.on,
    thin: _Thin = False,
    prediction: _Prediction = None,
    logprobs: options.Logprobs = -1,
    parallel: _Parallel = 1,
    key_file: _KeyFile = None,
    api_key: _ApiKey = None,
    user: _User = "",
    tools: options.Tools = None,
    tool_choice: _ToolChoice = "auto",
    state_dir: StateDir = None,
) -> None:
    """Chat with a mesh. Without a prompt it is a conversation; with one, one answer.

    Final text goes to standard output, timings to standard error. Provisional text is dimmed and
    only shown on a terminal. With tools, a conversation asks for the result of each call.
    """
    state = (state_dir or default_state_dir()).resolve()
    address = _edge_address(edge, ca, insecure, state)
    options.check_logprobs(logprobs, as_json=as_json)
    grammar = options.grammar(json_schema, regex, lark, json_object=json_object)
    params = options.sampling(
        temperature, top_p, top_k, seed, max_tokens, acceptance_threshold, logprobs, grammar
    )
    prompts = options.read_prompts(text, prompt, prompt_file)
    if as_json and not prompts:
        raise InvalidRequestError("--json answers prompts; give --prompt or --prompt-file")
    key = _key(key_file, api_key)
    if not key and edge is None and not insecure:
        key = development_key.read(state)
    caller = Caller(key, user)
    if edge is not None and not is_name(model):
        raise InvalidRequestError("with --edge, --model takes a name: a mesh knows no files")
    name = served_name(model, state / "config" / "edge.toml")
    expected = "" if prediction is None else options.read_text(prediction)
    known = options.read_tools(tools)
    choice = tool_choice if known else ""
    wanted = Wanted(name, provisional, speculation, thin, caller, expected, known, choice)
    session = ChatCommand(address, params, system, wanted)
    if not prompts:
        asyncio.run(session.interactive())
    else:
        asyncio.run(session.answer(prompts, as_json=as_json, parallel=parallel))


def _key(file: Path | None, flag: str | None) -> str:
    """The API key that the user gave; "": none. Raises InvalidRequestError, ConfigError."""
    if file is not None and flag is not None:
        raise InvalidRequestError("give one of --api-key and --key-file")
    if flag is not None:
        return flag.strip()
    if file is None:
        return configured_key(os.environ)
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} with the API key cannot be read: {error}") from error
    if not key:
        raise InvalidRequestError(f"{file} holds no API key")
    return key


def _edge_address(edge: str | None, ca: Path | None, insecure: bool, state: Path) -> EdgeAddress:
    if edge is not None:
        host, _, port = edge.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise InvalidRequestError(f"--edge takes HOST:PORT, not {edge!r}")
        return EdgeAddress(host, int(port), ca, insecure)
    mesh = running_mesh(state)
    if mesh is None:
        raise UnavailableError("no mesh is up here; start one with `outrider up`, or give --edge")
    return EdgeAddress(
        mesh.host, mesh.service("edge")["port"], ca or state / "tls" / "cert.pem", insecure
    )


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One run of the command."""

    address: EdgeAddress
    sampling: SamplingParams
    system: str | None
    wanted: Wanted
    interrupts: Interrupts = field(default_factory=Interrupts)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        # Imported here: the other roles' images run `outrider serve` without the client's packages.
        from outrider.client import ReconnectPolicy, connect

        where = self.address
        patient = ReconnectPolicy(give_up_after_s=_PATIENCE_S)
        caller = self.wanted.caller
        async with connect(
            where.host,
            where.port,
            ca=where.ca,
            insecure=where.insecure,
            reconnect=patient,
            key=caller.key,
            user=caller.user,
        ) as client:
            yield client

    async def answer(self, prompts: list[str], *, as_json: bool, parallel: int) -> None:
        """Answer every prompt; output keeps their order."""
        show = not as_json and parallel == 1
        gate = asyncio.Semaphore(parallel)

        async with self._client() as client:

            async def one(prompt: str) -> ChatResult:
                async with gate:
                    messages = options.conversation(self.system, prompt)
                    return await self._stream(client, messages, show=show)

            tasks = [asyncio.create_task(one(p)) for p in prompts]
            try:
                for prompt, task in zip(prompts, tasks, strict=True):
                    report(prompt, await task, as_json=as_json, shown=show)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def interactive(self) -> None:
        """Read prompts until /bye or end of input."""
        print(_HELP, file=sys.stderr)
        lines = Lines()
        with self.interrupts.listening():
            async with self._client() as client:
                history = options.conversation(self.system, "")[:-1]
                while (line := await lines.next("> ")) not in (None, "/bye"):
                    assert line is not None
                    if line == "/reset":
                        history = options.conversation(self.system, "")[:-1]
                    elif line in ("/help", "/?"):
                        print(_HELP, file=sys.stderr)
                    elif line.strip():
                        await self._turn(client, lines, history, line)

    async def _turn(self, client: Client, lines: Lines, history: list[Message], line: str) -> None:
        """Answer a line, and what the tools that the model calls give, as the user types it."""
        asked = [*history, Message("user", line)]
        calls: Sequence[ToolCall] | None = None
        while calls is None or calls:
            try:
                result = await self._stream(client, asked, show=True)
            except OutriderError as error:
                print(f"outrider: {error.message}", file=sys.stderr)
                return
            report(line, result, as_json=False, shown=True)
            asked.append(result.message)
            calls = result.tool_calls
            for call in calls:
                answer = await lines.next(f"{call.name}> ")
                if answer is None:
                    return
                asked.append(Message("tool", answer, tool_call_id=call.id))
        history[:] = asked

    async def _stream(self, client: Client, messages: list[Message], *, show: bool) -> ChatResult:
        from outrider.client import Transcript

        painter = Painter(shutil.get_terminal_size().columns)
        transcript = Transcript()
        async with client.chat(
            messages,
            sampling=self.sampling,
            model=self.wanted.model,
            provisional=self.wanted.provisional,
            speculation=self.wanted.speculation.value,
            thin=self.wanted.thin,
            prediction=self.wanted.prediction,
            tools=self.wanted.tools,
            tool_choice=self.wanted.tool_choice,
        ) as stream:
            try:
                with self.interrupts.stopping(stream.cancel):
                    async for event in stream:
                        follow(painter, transcript, event, shown=show)
                    return await stream.result()
            finally:
                if show and transcript.done is None:
                    break_off(painter, transcript)
