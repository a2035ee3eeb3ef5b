"""A model that nobody shipped, from a file or a definition to replies that equal the reference."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.client import Message, connect
from outrider.errors import UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.store import ModelStore
from outrider.models.tools import check_tools
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.formats import CallSyntax, ReplyFormat
from outrider.reply_parsing.grammar import call_grammar
from outrider.testing import eventually
from tests.engines.shallow_model import ShallowModel

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

FEW = ("inference.max_fixed_rows=2", "inference.warm_up_rows=16")
PROMPT = ("--prompt", "What is a river?", "--max-tokens", "24", "--json")
TOLD = b"You are a helpful AI assistant named SmolLM"
TOLD_OTHERWISE = b"You are a pirate, and whatever you say rhym"
"""As many bytes: the file stays whole."""
QUESTION = [Message("user", "What is a river?")]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}<|im_start|>assistant\nArr: "
)
STOP_TOKENS = ("<|im_start|>",)
TEMPLATE_WITH_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\nCall these functions: ' + (tools | tojson) + '<|im_end|>\\n' }}
    {%- for city in ['Rome', 'Oslo', 'Lima'] %}
        {{- '<|im_start|>user\\nIs it cold in ' + city + '?<|im_end|>\\n<|im_start|>assistant\\n' }}
        {{- '<tool_call>{"name": "get_weather", "arguments": {"city": "' + city + '"}}' }}
        {{- '</tool_call><|im_end|>\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""
"""Nobody trained the default model to call tools; it goes on with what it is shown."""


@pytest.fixture
def own_file(
    shallow_model: ShallowModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A model of nobody's, with a chat template of its own in the file."""
    whole = shallow_model.file.read_bytes()
    assert len(TOLD) == len(TOLD_OTHERWISE) and whole.count(TOLD) == 1
    file = tmp_path / "Our Model.Q4_1.gguf"
    file.write_bytes(whole.replace(TOLD, TOLD_OTHERWISE))
    monkeypatch.setenv("OUTRIDER_MODEL_STORE", str(tmp_path / "store"))
    yield file
    file.unlink()
    shutil.rmtree(tmp_path / "store", ignore_errors=True)  # some 100 MB


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


def test_a_mesh_of_a_file(own_file: Path, vocabulary: Vocabulary) -> None:
    model = ("--model", str(own_file))
    own_prompt = Vocabulary.from_gguf(own_file).encode_chat(QUESTION)
    assert len(own_prompt) != len(vocabulary.encode_chat(QUESTION)), "the template is another one"
    truth = answer("reference", *model)
    with local_mesh(regions="here", settings=FEW, model=str(own_file)) as mesh:
        assert chat(mesh) == truth
        reply = told("chat", "--state-dir", str(mesh.state_dir), *model)
        assert reply["ids"] == truth["ids"], "the file means the mesh's name for it"
        assert reply["usage"]["prompt_tokens"] == len(own_prompt), "the template is the file's own"
        assert chat(mesh, "--model", "our-model.q4_1") == truth
        assert "there is our-model.q4_1" in asyncio.run(refusal(mesh))
        wrong = outrider(
            *("chat", "--state-dir", str(mesh.state_dir), *PROMPT, "--model", "hf:o/r@main#f"),
            check=False,
        )
        assert wrong.returncode == 1
        assert "the mesh here serves our-model.q4_1" in wrong.stderr


@contextmanager
def template_file(
    store: ModelStore, folder: Path, template: str, stop_tokens: tuple[str, ...] = ()
) -> Iterator[Path]:
    """A chat template; what the machine's store keeps of it is removed again."""
    file = folder / "template.jinja"
    file.write_text(template, "utf-8")
    yield file
    key = ModelSpec("", "", chat_template=template, stop_tokens=stop_tokens).vocabulary_key()
    for kept in (store.root / "derived" / DEFAULT_MODEL.sha256).glob(f"*-{key}"):
        shutil.rmtree(kept)


@pytest.fixture
def own_template(model_store: ModelStore, tmp_path: Path) -> Iterator[Path]:
    with template_file(model_store, tmp_path, TEMPLATE, STOP_TOKENS) as file:
        yield file


@pytest.fixture
def template_with_tools(model_store: ModelStore, tmp_path: Path) -> Iterator[Path]:
    with template_file(model_store, tmp_path, TEMPLATE_WITH_TOOLS) as file:
        yield file


def forced_calls(tools: str) -> str:
    """The grammar by which a reply of the model with tools calls one of them."""
    texts = check_tools([json.dumps(tool) for tool in json.loads(tools)])
    return call_grammar(ReplyFormat(CallSyntax.HERMES), texts, lambda text: None, parallel=True)


def test_a_mesh_of_a_definition(own_template: Path, user_models: Path) -> None:
    """The weights of the default model: what is new are template, stop token and settings."""
    outrider(
        *("models", "add", "pirate", DEFAULT_MODEL.source, "--sha256", DEFAULT_MODEL.sha256),
        *("--chat-template", str(own_template), "--stop", *STOP_TOKENS, "--context", "512"),
        *("--draft", DEFAULT_MODEL.name),
    )
    truth = answer("reference", "--model", "pirate")
    assert truth != answer("reference")
    with local_mesh(regions="here", settings=FEW, model="pirate") as mesh:
        user_models.unlink()  # the mesh keeps what it was started with
        assert chat(mesh) == truth
        assert chat(mesh, "--thin", "--model", "pirate") == truth
        long = outrider(
            *("chat", "--state-dir", str(mesh.state_dir), "--prompt", "word " * 600), check=False
        )
        assert long.returncode == 1
        assert "at most 511 fit" in long.stderr
        log = mesh.state_dir / "logs" / "edge.log"
        # The model that its definition names drafts.
        asyncio.run(
            eventually(lambda: "draft model loaded" in log.read_text("utf-8"), timeout_s=60.0)
        )


def test_a_mesh_whose_model_calls_tools(
    template_with_tools: Path, user_models: Path, tmp_path: Path
) -> None:
    """The call that the reference reads, whoever tokenizes; and no tools for other templates."""
    tools = tmp_path / "tools.json"
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools.write_text(json.dumps([{"name": "get_weather", "parameters": city}]), "utf-8")
    template = ("--chat-template", str(template_with_tools))
    outrider("models", "add", "caller", DEFAULT_MODEL.source, *template)
    flags = ("--tools", str(tools), "--prompt", "Is it cold in Paris?", "--max-tokens", "60")

    def asked(command: str, *arguments: str) -> dict[str, Any]:
        done = outrider(command, *flags, "--json", *arguments, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        calls = [(call["name"], call["arguments"]) for call in found["tool_calls"]]
        return {key: found[key] for key in ("text", "ids", "content")} | {"calls": calls}

    truth = asked("reference", "--model", "caller")
    assert truth["calls"] == [("get_weather", '{"city": "Paris"}')] and truth["content"] == ""
    refused = outrider("reference", *flags, check=False)
    assert refused.returncode == 1 and "shows no tools" in refused.stderr
    # Nothing in this question makes the model call anything; a tool choice does.
    other = (*flags[:2], "--prompt", "Say hello.", "--max-tokens", "60", "--json")
    lark = tmp_path / "calls.lark"
    lark.write_text(forced_calls(tools.read_text("utf-8")), "utf-8")
    done = outrider("reference", *other, "--model", "caller", "--lark", str(lark))
    forced = json.loads(done.stdout)
    assert [call["name"] for call in forced["tool_calls"]] == ["get_weather"]
    assert set(json.loads(forced["tool_calls"][0]["arguments"])) <= {"city"}
    with local_mesh(regions="here", settings=FEW, model="caller") as mesh:
        here = ("--state-dir", str(mesh.state_dir))
        for choice in (("required",), ("get_weather", "--thin"), ("required", "--speculation=off")):
            chosen = outrider("chat", *here, *other, "--tool-choice", *choice)
            found = json.loads(chosen.stdout)
            assert [found[it] for it in ("text", "ids")] == [forced[it] for it in ("text", "ids")]
            assert found["tool_calls"][0]["arguments"] == forced["tool_calls"][0]["arguments"]
        for more in ((), ("--thin",), ("--speculation", "off")):
            assert asked("chat", *here, *more) == truth
        shown = outrider("chat", *here, *flags)
        assert 'calls get_weather({"city": "Paris"})' in shown.stderr
        assert truth["text"] in shown.stdout
        talk = ("chat", *here, *flags[:2], "--max-tokens", "60")
        given = "Is it cold in Paris?\nyes, -3 degrees\n"
        talked = outrider(*talk, given=given)
        assert "calls get_weather(" in talked.stderr and talked.stderr.count("tokens/s") >= 2
