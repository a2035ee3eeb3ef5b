"""A model that nobody shipped, from a file or a definition to replies that equal the reference."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.client import Message, connect
from outrider.errors import UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore
from outrider.models.tools import check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.formats import CallSyntax, ReplyFormat
from outrider.reply_parsing.grammar import call_grammar
from outrider.testing import eventually
from tests.cli.prompting.terminal import terminal
from tests.e2e.calling_model import STOP_TOKENS, own_template

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

FEW = (
    *("inference.max_fixed_rows=2", "inference.warm_up_rows=16"),
    *("edge.tokenization.backend=tokenizers", "tokenizer.backend=tokenizers"),
)
"""Of backends too, none is compared with the reference first, in a store of its own."""
QUESTION = "What is a river?"
PROMPT = ("--prompt", QUESTION, "--max-tokens", "24", "--json")


@pytest.fixture
def own_file(tinies: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of nobody's, with a chat template of its own in the file."""
    file = tmp_path / "Our Model.Q4_1.gguf"
    shutil.copyfile(tinies[0], file)
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    return file


def told(command: str, *arguments: str) -> Any:
    done = outrider(command, *PROMPT, *arguments, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answer(command: str, *arguments: str) -> dict[str, object]:
    reply = told(command, *arguments)
    return {key: reply[key] for key in ("text", "ids", "finish_reason")}


def chat(mesh: LocalMesh, *arguments: str) -> dict[str, object]:
    return answer("chat", "--state-dir", str(mesh.state_dir), *arguments)


async def refusal(mesh: LocalMesh) -> str:
    """What a client is told that asks for a model nobody knows."""
    host, port = mesh.edge
    async with connect(host, port, ca=mesh.ca) as client:
        with pytest.raises(UnknownModelError) as refused:
            async with client.chat([Message("user", "hi")], model="no-such-model") as asked:
                await asked.result()
    return refused.value.message


def test_a_mesh_of_a_file(own_file: Path, tinies: tuple[Path, Path]) -> None:
    model = ("--model", str(own_file))
    vocabulary = Vocabulary.from_gguf(own_file)
    own_prompt = vocabulary.encode_chat([Message("user", QUESTION)])
    assert vocabulary.decode(own_prompt) == QUESTION + " ", "the template is the file's own"
    truth = answer("reference", *model)
    # Another model of the same vocabulary.
    settings = (*FEW, f"edge.drafter.model={tinies[1]}")
    with local_mesh(regions="here", settings=settings, model=str(own_file)) as mesh:
        log = mesh.state_dir / "logs" / "edge.log"
        asyncio.run(
            eventually(lambda: "draft_model_loaded" in log.read_text("utf-8"), timeout_s=240.0)
        )
        assert chat(mesh) == truth
        reply = told("chat", "--state-dir", str(mesh.state_dir), *model)
        assert reply["ids"] == truth["ids"], "the file means the mesh's name for it"
        assert reply["usage"]["prompt_tokens"] == len(own_prompt)
        assert chat(mesh, "--model", "our-model.q4_1") == truth
        assert "there is our-model.q4_1" in asyncio.run(refusal(mesh))
        wrong = outrider(
            *("chat", "--state-dir", str(mesh.state_dir), *PROMPT, "--model", "hf:o/r@main#f"),
            check=False,
        )
        assert wrong.returncode == 1
        assert "the mesh here serves our-model.q4_1" in wrong.stderr


@pytest.fixture
def template_file(model_store: ModelStore, tmp_path: Path) -> Iterator[Path]:
    with own_template(model_store, tmp_path) as file:
        yield file


@dataclass(frozen=True, slots=True)
class WithTools:
    """A chat with a function that the model is to call."""

    flags: tuple[str, ...]

    @classmethod
    def about_the_weather(cls, folder: Path) -> WithTools:
        file = folder / "tools.json"
        city = {"type": "object", "properties": {"city": {"type": "string"}}}
        file.write_text(json.dumps([{"name": "get_weather", "parameters": city}]), "utf-8")
        return cls(("--tools", str(file), "--prompt", "Is it cold in Paris?", "--max-tokens", "60"))

    def asked(self, command: str, *arguments: str) -> dict[str, Any]:
        """The reply, and the calls in it."""
        done = outrider(command, *self.flags, "--json", *arguments, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        calls = [(call["name"], call["arguments"]) for call in found["tool_calls"]]
        return {key: found[key] for key in ("text", "ids", "content")} | {"calls": calls}

    def forced(self, command: str, *arguments: str) -> dict[str, Any]:
        """The reply to a question that makes the model call nothing by itself."""
        flags = (*self.flags[:2], "--prompt", "Say hello.", "--max-tokens", "60", "--json")
        found: dict[str, Any] = json.loads(outrider(command, *flags, *arguments).stdout)
        calls = [(call["name"], call["arguments"]) for call in found["tool_calls"]]
        return {key: found[key] for key in ("text", "ids")} | {"calls": calls}

    def check_forced(self, mesh: LocalMesh, truth: dict[str, Any]) -> None:
        """A tool choice forces the call that the reference makes under the choice's grammar."""
        here = ("--state-dir", str(mesh.state_dir), "--tool-choice")
        assert self.forced("chat", *here, "get_weather", "--thin") == truth

    def grammar(self) -> str:
        """Of a reply that calls one of the tools."""
        tools = json.loads(Path(self.flags[1]).read_text("utf-8"))
        texts = check_tools([json.dumps(tool) for tool in tools])
        return call_grammar(ReplyFormat(CallSyntax.HERMES), texts, lambda text: None, parallel=True)

    def check(self, mesh: LocalMesh, truth: dict[str, Any]) -> None:
        """The call that the reference reads, whoever tokenizes."""
        here = ("--state-dir", str(mesh.state_dir))
        assert self.asked("chat", *here, "--thin") == truth
        shown = outrider("chat", *here, *self.flags)
        assert 'calls get_weather({"city": "Paris"})' in shown.stderr
        assert truth["text"] in shown.stdout
        talk = ("chat", *here, *self.flags[:2], "--max-tokens", "60")
        with terminal(*talk) as user:
            user.prompted()
            user.type("Is it cold in Paris?\r")
            assert "calls get_weather(" in user.prompted()
            user.type("yes, -3 degrees\r")
            user.until("tokens/s")


def test_a_mesh_of_a_definition_that_calls_tools(
    template_file: Path, user_models: Path, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """The weights of the default model: what is new are template, stop token and settings."""
    outrider(
        *("models", "add", "pirate", DEFAULT_MODEL.source, "--sha256", DEFAULT_MODEL.sha256),
        *("--chat-template", str(template_file), "--stop", *STOP_TOKENS, "--context", "512"),
        *("--draft", "none"),
    )
    weather = WithTools.about_the_weather(tmp_path)
    call = weather.asked("reference", "--model", "pirate")
    assert call["calls"] == [("get_weather", '{"city": "Paris"}')] and call["content"] == ""
    lark = tmp_path / "calls.lark"
    lark.write_text(weather.grammar(), "utf-8")
    forced = weather.forced("reference", "--model", "pirate", "--lark", str(lark))
    assert [name for name, _ in forced["calls"]] == ["get_weather"]
    assert set(json.loads(forced["calls"][0][1])) <= {"city"}
    with local_mesh(regions="here", settings=FEW, model="pirate") as mesh:
        user_models.unlink()  # the mesh keeps what it was started with
        plain = chat(mesh)
        thin = told("chat", "--state-dir", str(mesh.state_dir), "--thin", "--model", "pirate")
        assert thin["ids"] == plain["ids"]
        shipped = vocabulary.encode_chat([Message("user", QUESTION)])
        assert thin["usage"]["prompt_tokens"] < len(shipped), "without its system message"
        long = outrider(
            *("chat", "--state-dir", str(mesh.state_dir), "--prompt", "word " * 600), check=False
        )
        assert long.returncode == 1
        assert "at most 511 fit" in long.stderr
        weather.check(mesh, call)
        weather.check_forced(mesh, forced)
