"""A conversation by itself: what is asked of the mesh, and what commands change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from outrider.cli.prompting.conversation import Conversation, Settings
from outrider.cli.prompting.painter import Painter
from outrider.cli.prompting.sampling_choice import SamplingChoice
from outrider.client import ChatResult
from outrider.errors import UnavailableError, UnknownModelError
from outrider.models.chat import Message
from outrider.models.suggested_sampling import OUTRIDERS_OWN, SuggestedSampling
from outrider.models.tools import ToolCall
from outrider.sampling.params import SamplingParams
from tests.cli.prompting.test_output import RESULT

SETTINGS = Settings("", None, SamplingParams())


class Typed:
    """A person who types these lines."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    async def ask(self, prompt: str, typed: Callable[[str], None] | None = None) -> str | None:
        self.prompts.append(prompt)
        line = next(self._lines, None)
        if typed is not None and line is not None:
            for num_chars in range(1, len(line) + 1):
                typed(line[:num_chars])
        return line


class Mesh:
    """Answers with the number of the question."""

    def __init__(self, *calls: ToolCall) -> None:
        self.asked: list[tuple[list[Message], Settings]] = []
        self._calls = calls

    async def reply(
        self, messages: list[Message], settings: Settings, painter: Painter
    ) -> ChatResult:
        self.asked.append((messages, settings))
        if messages[-1].content == "fail":
            painter.paint("half", "")
            raise UnavailableError("the edge is gone")
        text = f"answer {len(self.asked)}"
        painter.paint(text, "")
        calls = self._calls if len(self.asked) == 1 else ()
        return ChatResult(
            **{name: getattr(RESULT, name) for name in NAMES},
            text=text,
            content=text,
            tool_calls=calls,
            request_id=f"id-{len(self.asked)}",
        )


NAMES = (
    *("ids", "finish_reason", "usage", "timings", "replica_timings", "edge_timings"),
    *("num_retractions", "erased_chars", "region", "replica"),
)


async def name_of(model: str) -> str:
    if model == "none":
        raise UnknownModelError("there is no model none")
    return model.lower()


async def talk(*lines: str, mesh: Mesh | None = None) -> Mesh:
    mesh = mesh or Mesh()
    await Conversation(Typed(lines), mesh.reply, SETTINGS, name_of).run()
    return mesh


def contents(messages: list[Message]) -> list[str]:
    return [message.content for message in messages]


async def test_messages_follow_what_was_said_before() -> None:
    mesh = await talk("one", "", "two", "/bye", "three")
    assert [contents(messages) for messages, _ in mesh.asked] == [
        ["one"],
        ["one", "answer 1", "two"],
    ]


async def test_a_reset_forgets_and_a_failure_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mesh = await talk("one", "fail", "/reset", "two")
    assert contents(mesh.asked[-1][0]) == ["two"]
    assert "outrider: the edge is gone\n" in capsys.readouterr().err


async def test_what_commands_set_holds_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("/model Small", "/system be brief", "/seed 7", "one", "/system -", "/model", "two")
    mesh = await talk(*lines)
    (first, then), (second, _) = mesh.asked
    assert (then.model, then.system, then.sampling.seed) == ("small", "be brief", 7)
    assert contents(first) == ["be brief", "one"]
    assert contents(second) == ["one", "answer 1", "two"]
    told = capsys.readouterr().err
    assert "asking small\n" in told
    assert "seed 7; without effect at temperature 0\n" in told
    assert "no system message\n" in told


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/model none", "there is no model none"),
        ("/seed seven", "whole number, not 'seven'"),
        ("/seed -1", "seed"),
        ("/save", "say where to"),
        ("/foo", "no command /foo"),
        ("\ud800", "lone surrogate"),
    ],
)
async def test_what_is_refused_changes_nothing(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh = await talk(line, "one")
    assert says in capsys.readouterr().err
    assert mesh.asked == [([Message("user", "one")], SETTINGS)]


async def test_it_is_saved_as_messages_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "said.json"
    await talk("/system brief", "one", f"/save {file}", f"/save {file}")
    assert json.loads(file.read_text("utf-8")) == [
        {"role": "system", "content": "brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer 1"},
    ]
    assert "exists already" in capsys.readouterr().err


async def test_stats_tell_the_settings_and_the_last_reply(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await talk("/stats", "one", "two", "/stats")
    told = capsys.readouterr().err
    assert told.count("asking the default model: greedy, at most") == 2
    assert "2 replies: 6 prompt tokens, of them 0 cached; 4 tokens written" in told
    assert "us-east-0 in us-east; `outrider explain --request id-2`" in told


async def test_what_tools_give_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    typed = Typed(["weather?", "rain", f"/save {file}"])
    mesh = Mesh(ToolCall("c1", "get_weather", "{}"))
    await Conversation(typed, mesh.reply, SETTINGS, name_of).run()
    assert typed.prompts == ["> ", "get_weather> ", "> ", "> "]
    assert contents(mesh.asked[1][0]) == ["weather?", "answer 1", "rain"]
    saved = json.loads(file.read_text("utf-8"))
    assert saved[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}
    assert saved[2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


async def test_replies_are_sampled_as_suits_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    mesh, asked = Mesh(), list[str]()
    cool = SuggestedSampling(temperature=0.2, top_p=0.9)

    async def choose(model: str) -> SamplingChoice:
        asked.append(model)
        if model == "late":
            return SamplingChoice(OUTRIDERS_OWN, "guesses", is_final=len(asked) > 2)
        return SamplingChoice(cool, "the model's definition")

    lines = ("/seed 7", "one", "/stats", "/model late", "two", "three", "four", "/stats")
    settings = Settings("", None, SamplingParams(max_tokens=9))
    await Conversation(Typed(lines), mesh.reply, settings, name_of, choose).run()
    used = [settings.sampling for _, settings in mesh.asked]
    assert used[0] == SamplingParams(temperature=0.2, top_p=0.9, seed=7, max_tokens=9)
    own = SamplingParams(**OUTRIDERS_OWN.values(), seed=7, max_tokens=9)
    assert used[1:] == [own, own, own]
    assert asked == ["", "late", "late"]  # asked again only until it is known
    told = capsys.readouterr().err
    assert "seed 7\n" in told  # and not "without effect"
    assert "temperature 0.2, top_p 0.9, seed 7 (from the model's definition), at most 9" in told
    assert "temperature 0.8, top_p 0.95, top_k 40, min_p 0.05, seed 7 (from guesses)" in told
