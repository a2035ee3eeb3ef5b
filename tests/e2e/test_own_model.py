"""A model that nobody shipped, from a file or a definition to replies that equal the reference."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from outrider.client import Message, connect
from outrider.errors import UnknownModelError
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
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


@pytest.fixture
def own_template(model_store: ModelStore, tmp_path: Path) -> Iterator[Path]:
    """A chat template; what the machine's store keeps of it is removed again."""
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE, "utf-8")
    yield file
    key = ModelSpec("", "", chat_template=TEMPLATE, stop_tokens=STOP_TOKENS).vocabulary_key()
    for folder in (model_store.root / "derived" / DEFAULT_MODEL.sha256).glob(f"*-{key}"):
        shutil.rmtree(folder)


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
