"""A tokenizer service whose configuration file changes, over real gRPC: models come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider import config_following
from outrider.config_following import ConfigSource
from outrider.errors import UnknownModelError, VocabularyUnavailableError
from outrider.models.catalog import load_catalog, use
from outrider.v1 import tokenizer_pb2
from services.tokenizer.config import TokenizerConfig
from tests.models.test_folder import TEMPLATE, write_folder
from tests.service import refusal
from tests.tokenizer.running import TokenizerUnderTest, running_tokenizer

TEXT = "one two three " * 40


class Models:
    """A configuration file, and the folders of the models that it defines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "outrider.toml"

    def write(self, *served: str, more: str = "") -> None:
        """Swap the file for one that serves these models; `more` are further lines."""
        names = ", ".join(f'"{name}"' for name in served)
        lines = ["[tokenizer]", f"models = [{names}]"]
        for name in served:
            folder = self._folder / name
            if not folder.exists():
                # Different templates: different contracts.
                write_folder(folder, **{"chat_template.jinja": TEMPLATE + name})
            lines += [f"[models.{name}]", f'source = "dir:{folder}"']
        scratch = self.file.with_suffix(".tmp")
        scratch.write_text("\n".join([*lines, more]))
        scratch.replace(self.file)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.setattr(config_following, "POLL_S", 0.02)
    monkeypatch.setenv("OUTRIDER_MODELS", "/dev/null")
    return Models(tmp_path)


@asynccontextmanager
async def following_tokenizer(models: Models, store: Path) -> AsyncIterator[TokenizerUnderTest]:
    flags = {"port": 0, "worker_processes": 1, "model_store": store, "log_level": "critical"}
    flags["backend"] = "tokenizers"  # no comparison with others for each new model
    use(load_catalog(models.file), models.file)
    try:
        source = ConfigSource(TokenizerConfig, "tokenizer", models.file, flags)
        async with running_tokenizer(None, source=source) as service:
            yield service
    finally:
        use(None)


async def digest(service: TokenizerUnderTest, model: str) -> bytes:
    """What a model's texts are encoded with; nothing if it is unknown, or still being loaded."""
    request = tokenizer_pb2.EncodeRequest(number=1, model=model, text=TEXT)
    answer = (await service.encode([request]))[1]
    if answer.HasField("error"):
        reasons = (UnknownModelError.reason, VocabularyUnavailableError.reason)
        assert answer.error.reason in reasons, answer.error
    return answer.vocabulary_digest


async def becomes(service: TokenizerUnderTest, model: str, *, served: bool) -> bytes:
    """Until a model is served, or is not."""
    async with asyncio.timeout(60):
        while bool(found := await digest(service, model)) != served:
            await asyncio.sleep(0.02)
    return found


async def tokenized(service: TokenizerUnderTest, model: str) -> bytes:
    """The digest that worker processes tokenize a model's texts with."""
    request = tokenizer_pb2.TokenizeRequest(model=model, text=TEXT)
    blocks = [answer async for answer in service.stub.Tokenize(iter([request]))]
    assert sum(block.ids.count for block in blocks)
    return blocks[0].vocabulary_digest


async def test_models_come_and_go(models: Models, tmp_path: Path) -> None:
    models.write("a")
    async with following_tokenizer(models, tmp_path / "store") as service:
        first = await digest(service, "a")
        assert await tokenized(service, "a") == first
        assert not await digest(service, "b")

        models.write("a", "b")
        second = await becomes(service, "b", served=True)
        assert second != first
        assert await digest(service, "a") == first
        # The worker was started before there was such a vocabulary.
        assert await tokenized(service, "b") == second

        models.write("b")
        await becomes(service, "a", served=False)
        assert await digest(service, "") == second, "the first of the list is the default"


async def test_a_list_that_cannot_be_is_refused_and_all_goes_on(
    models: Models, tmp_path: Path
) -> None:
    models.write("a")
    async with following_tokenizer(models, tmp_path / "store") as service:
        first = await digest(service, "a")
        models.write("a", "b", more="[models.c]\nsource = 3")
        assert "models.c" in await refusal(service.ports, models.file), "who wrote it is told"
        assert not await digest(service, "b")
        models.write("a", "b")
        await becomes(service, "b", served=True)
        assert await digest(service, "a") == first
