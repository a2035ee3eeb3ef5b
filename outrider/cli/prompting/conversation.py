"""A conversation at a terminal: each line is a message for the model, or a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from outrider.cli.prompting import commands, sampling_choice
from outrider.cli.prompting.commands import Command
from outrider.cli.prompting.output import closing_lines, in_words, summary, terminal_size
from outrider.cli.prompting.painter import Painter
from outrider.cli.prompting.sampling_choice import SamplingChoice
from outrider.errors import InvalidRequestError, OutriderError
from outrider.models.chat import Message, check_text
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.client import ChatResult
    from outrider.models.tools import ToolCall

_WELCOME: Final = "/help lists the commands, /bye ends; Ctrl-C stops a reply."
_MAX_SHOWN_CHARS: Final = 65_536
"""Most characters of the conversation with which a resized terminal is repainted: more than a
screen has."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that commands change."""

    model: str
    """Empty: the edge's default."""
    system: str | None
    sampling: SamplingParams
    sampling_source: str = ""
    """Origin of the sampling values, for the user; "" if flags set them."""


class Asks(Protocol):
    """Reads what a person types."""

    async def ask(self, prompt: str, typed: Callable[[str], None] | None = None) -> str | None:
        """None at the end of input. `typed` is told the text whenever that changes."""


Choose: TypeAlias = Callable[[str], Awaitable[SamplingChoice]]
"""How a model, "" being the default, is sampled. Raises OutriderError."""
Reply: TypeAlias = "Callable[[list[Message], Settings, Painter], Awaitable[ChatResult]]"
"""Asks the mesh, paints the reply as it comes, and returns it whole."""
Typed: TypeAlias = Callable[[list[Message], Settings], Callable[[str], None]]
"""Has the mesh begin its answer to a message that is typed after these. What it returns is told the
text whenever that changes."""


class Conversation:
    """The messages so far and the settings."""

    def __init__(
        self,
        prompts: Asks,
        reply: Reply,
        settings: Settings,
        check_model: Callable[[str], Awaitable[str]],
        choose: Choose | None = None,
        typed: Typed | None = None,
    ) -> None:
        """`check_model` returns the served name for a user's model name; raises OutriderError for
        one that is not served. `choose` picks the sampling of replies; None: that of the
        settings. `typed`: for a user who agreed that messages are sent while they are typed; None:
        nothing of them leaves this process before Enter."""
        self._prompts = prompts
        self._reply = reply
        self._settings = settings
        self._check_model = check_model
        self._choose = choose
        self._typed = typed
        self._chosen_for: str | None = None
        self._said: list[Message] = []
        self._results: list[ChatResult] = []
        self._shown = ""

    async def run(self) -> None:
        """Until /bye or the end of input. Raises KeyboardInterrupt at Ctrl-C in an empty line."""
        self._tell(_WELCOME)
        while (line := await self._ask("> ", await self._while_typed())) is not None:
            try:
                what = commands.read(line)
                if what == Command("/bye", ""):
                    return
                if isinstance(what, Command):
                    if what.name in ("/stats", "/seed"):
                        await self._choose_sampling()
                    self._tell(await self._obey(what))
                elif what.strip():
                    check_text(what)
                    await self._turn(what)
            except OutriderError as error:
                self._tell(f"outrider: {error.message}")

    async def _turn(self, text: str) -> None:
        """Answer a message, and what the tools that the model calls give, as the user types it."""
        await self._choose_sampling()
        asked = [*self._said, Message("user", text)]
        calls: Sequence[ToolCall] | None = None
        while calls is None or calls:
            head = self._head()
            painter = Painter(*terminal_size(), self._shown)
            try:
                result = await self._reply([*head, *asked], self._settings, painter)
            finally:
                self._shown = painter.shown + "\n"
            self._results.append(result)
            self._tell("\n".join(closing_lines(result)))
            asked.append(result.message)
            calls = result.tool_calls
            for call in calls:
                answer = await self._ask(f"{call.name}> ")
                if answer is None:
                    return
                asked.append(Message("tool", answer, tool_call_id=call.id))
        self._said = asked

    async def _choose_sampling(self) -> None:
        """Sample as suits the model, unless that is done already. Raises OutriderError."""
        model = self._settings.model
        if self._choose is None or self._chosen_for == model:
            return
        choice = await self._choose(model)
        self._chosen_for = model if choice.is_final else None
        self._settings = replace(
            self._settings,
            sampling=choice.applied_to(self._settings.sampling),
            sampling_source=choice.source,
        )

    async def _obey(self, command: Command) -> str:
        """Carry out a command; returns the line to print. Raises OutriderError."""
        argument = command.argument
        match command.name:
            case "/model":
                if argument:
                    name = await self._check_model(argument)
                    self._settings = replace(self._settings, model=name)
                return f"asking {self._settings.model or 'the default model'}"
            case "/system":
                if argument:
                    system = None if argument == "-" else argument
                    self._settings = replace(self._settings, system=system)
                shown = self._settings.system
                return "no system message" if shown is None else f"system message: {shown}"
            case "/seed":
                if argument:
                    sampling = replace(self._settings.sampling, seed=_seed(argument))
                    self._settings = replace(self._settings, sampling=sampling)
                return f"seed {self._settings.sampling.seed}{self._without_effect()}"
            case "/save":
                return self._save(argument)
            case "/stats":
                return self._stats()
            case "/reset":
                self._said = []
                return "forgotten"
            case _:
                return commands.HELP

    def _without_effect(self) -> str:
        greedy = self._settings.sampling.temperature == 0
        return "; without effect at temperature 0" if greedy else ""

    def _save(self, name: str) -> str:
        if not name:
            raise InvalidRequestError("say where to: /save FILE")
        system = self._settings.system
        head = [] if system is None else [{"role": "system", "content": system}]
        text = json.dumps([*head, *map(_as_object, self._said)], ensure_ascii=False, indent=1)
        file = Path(name).expanduser()
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(text + "\n")
        except FileExistsError:
            raise InvalidRequestError(f"{file} exists already; name another file") from None
        except OSError as error:
            raise InvalidRequestError(f"{file} cannot be written: {error.strerror}") from error
        return f"{len(self._said)} messages are in {file}"

    def _stats(self) -> str:
        sampling, results = self._settings.sampling, self._results
        source = self._settings.sampling_source
        how = sampling_choice.in_words(sampling) + (f" (from {source})" if source else "")
        lines = [
            f"asking {self._settings.model or 'the default model'}: {how}, "
            f"at most {sampling.max_tokens} tokens a reply"
        ]
        if results:
            usages = [result.usage for result in results]
            lines += [
                f"{in_words(len(results), 'reply', 'replies')}: "
                f"{sum(it.prompt_tokens for it in usages)} prompt tokens, of them "
                f"{sum(it.cached_tokens for it in usages)} cached; "
                f"{sum(len(it.ids) for it in results)} tokens written",
                f"the last: {summary(results[-1])}",
                f"by {results[-1].replica} in {results[-1].region}; "
                f"`outrider explain --request {results[-1].request_id}` shows why it was chosen",
            ]
        return "\n".join(lines)

    def _head(self) -> list[Message]:
        system = self._settings.system
        return [] if system is None else [Message("system", system)]

    async def _while_typed(self) -> Callable[[str], None] | None:
        """What is told the next message while it is typed; None: nobody."""
        if self._typed is None:
            return None
        try:
            await self._choose_sampling()
        except OutriderError:
            return None  # the message itself will say what is wrong
        tell = self._typed([*self._head(), *self._said], self._settings)

        def changed(text: str) -> None:
            if not text.startswith("/"):  # commands stay here
                tell(text)

        return changed

    async def _ask(self, prompt: str, typed: Callable[[str], None] | None = None) -> str | None:
        line = await self._prompts.ask(prompt, typed)
        if line is not None:
            self._remember(f"{prompt}{line}")
        return line

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._remember(text)

    def _remember(self, text: str) -> None:
        self._shown = f"{self._shown}{text}\n"[-_MAX_SHOWN_CHARS:]


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(f"/seed takes a whole number, not {text!r}") from None


def _as_object(message: Message) -> dict[str, object]:
    """In the shape of OpenAI's messages."""
    shown: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown
