"""Vocabularies loaded in threads and given to requests, as the table decides
(tests/test_load_table.py)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from outrider.errors import (
    ConfigError,
    ModelStoreError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.models.catalog import SHIPPED
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.router.config import RouterConfig
from services.router.upstream.tokenizers import MAX_ASKED
from services.tokenizer.served_models import WAITS, ServedModels, tokenized
from services.tokenizer.vocabularies import ServedVocabulary
from tests.edge.integration.region import small_vocabulary

WORDS = small_vocabulary()


def digest_of(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def served(model: str, version: str = "") -> ServedVocabulary:
    """A vocabulary of its own digest, as loading would make one."""
    facts = replace(WORDS.facts, digest_hex=digest_of(model + version).hex())
    return ServedVocabulary.of(model, Vocabulary(WORDS.tokenizer_json, facts))


class Store:
    """What loads vocabularies: fails, or waits, as a test says."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.version = ""
        self.loop_thread = threading.get_ident()

    def __call__(self, model: str) -> tuple[ServedVocabulary, ...]:
        assert threading.get_ident() != self.loop_thread, "loading would block the event loop"
        self.loads.append(model)
        if model in self.gates:
            assert self.gates[model].wait(10.0)
        if model in self.errors:
            raise self.errors[model]
        return (served(model, self.version),)


@pytest.fixture
def store() -> Store:
    return Store()


async def use(models: ServedModels, model: str, digest: bytes = b"") -> bytes:
    async with models.using(model, digest) as found:
        return found.vocabulary.digest


def names(models: ServedModels) -> list[str]:
    return [it.model for it in models.loaded()]


async def test_a_vocabulary_is_loaded_once_for_all_who_ask_at_the_same_time(store: Store) -> None:
    models = ServedModels(store, ["a", "b"], 2)

    found = await asyncio.gather(*(use(models, name) for name in ("b", "b", "", "b")))

    assert found == [digest_of(name) for name in "bbab"]
    assert sorted(store.loads) == ["a", "b"]


async def test_the_one_used_least_recently_goes(store: Store) -> None:
    models = ServedModels(store, "abc", 2)
    given_up: list[object] = []
    models.on_unload = given_up.append
    for name in "abac":
        await use(models, name)

    assert sorted(names(models)) == ["a", "c"]
    assert len(given_up) == 1
    await use(models, "b")
    assert sorted(names(models)) == ["b", "c"]
    assert store.loads == ["a", "b", "c", "b"]


def test_who_asks_for_a_vocabulary_that_is_being_loaded_is_told_before_its_router_gives_up() -> (
    None
):
    """A tokenizer that is given up is asked last, for all models."""
    longest_wait_s = WAITS.max_wait_s
    assert RouterConfig().tokenize_timeout_s / MAX_ASKED >= longest_wait_s + 0.5


async def test_one_that_is_being_loaded_is_never_taken(store: Store) -> None:
    store.gates["a"] = threading.Event()
    models = ServedModels(store, "ab", 1)
    waiting = asyncio.create_task(use(models, "a"))
    await eventually(lambda: store.loads == ["a"])
    waiting.cancel()  # whoever asked is gone, the thread is not
    await asyncio.gather(waiting, return_exceptions=True)

    with pytest.raises(OverloadedError):
        await use(models, "b")
    store.gates["a"].set()
    await models.close()
    assert await use(models, "b") == digest_of("b")


async def test_who_is_cancelled_leaves_nothing_in_use(store: Store) -> None:
    store.gates["a"] = threading.Event()
    models = ServedModels(store, "ab", 1, replace(WAITS, max_wait_s=30.0))

    async def use_and_cancel() -> None:
        async with models.using("a"):
            granted.cancel()  # it was granted the vocabulary too, and has not run since

    first = asyncio.create_task(use_and_cancel())
    granted = asyncio.create_task(use(models, "a"))
    waiting = asyncio.create_task(use(models, "a"))
    await eventually(lambda: store.loads == ["a"])
    waiting.cancel()
    store.gates["a"].set()
    await asyncio.gather(first, granted, waiting, return_exceptions=True)

    assert granted.cancelled() and waiting.cancelled()
    assert await use(models, "b") == digest_of("b"), "a gives way: nobody uses it"


async def test_a_request_waits_for_a_vocabulary_only_so_long(store: Store) -> None:
    store.gates["a"] = threading.Event()
    models = ServedModels(store, "a", 1, replace(WAITS, max_wait_s=0.01))
    with pytest.raises(VocabularyUnavailableError, match="is being loaded"):
        await use(models, "a")
    store.gates["a"].set()
    await models.close()
    assert await use(models, "a") == digest_of("a")
    assert store.loads == ["a"], "the loading went on"


async def test_a_defect_is_told_without_its_details(store: Store) -> None:
    store.errors["a"] = RuntimeError("/secret/path")
    models = ServedModels(store, "a", 1)

    with pytest.raises(VocabularyUnavailableError, match="see the tokenizer's log") as caught:
        await use(models, "a")
    assert "secret" not in str(caught.value)


async def test_at_the_start_the_default_has_to_be_there_and_others_need_not(store: Store) -> None:
    store.errors["b"] = ModelStoreError("gone")
    models = ServedModels(store, "abc", 2)
    await models.preload()
    assert names(models) == ["a"], "as many as may be loaded were tried"

    store.errors["a"] = ModelStoreError("gone")
    with pytest.raises(ModelStoreError, match="gone"):
        await ServedModels(store, "ab", 2).preload()


async def test_added_models_are_loaded_and_removed_ones_go(store: Store) -> None:
    models = ServedModels(store, "ab", 3)
    await models.preload()
    models.configure(store, "bc")
    await eventually(lambda: sorted(names(models)) == ["b", "c"])

    assert await use(models, "") == digest_of("b"), "the first is the default"
    with pytest.raises(UnknownModelError, match="model 'a' here; use b, c"):
        await use(models, "a")


async def test_what_a_removed_model_was_used_for_goes_on(store: Store) -> None:
    models = ServedModels(store, "ab", 2)
    await models.preload()
    async with models.using("a") as found:
        models.configure(store, "b")
        assert found.vocabulary.digest == digest_of("a")
        # Workers ask for the vocabulary of a part that they have.
        assert await use(models, "a", digest_of("a")) == digest_of("a")
        with pytest.raises(UnknownModelError):
            await use(models, "a")
        assert sorted(names(models)) == ["a", "b"]
    assert names(models) == ["b"]
    with pytest.raises(UnknownModelError):
        await use(models, "a", digest_of("a"))


async def test_a_changed_definition_is_loaded_anew(store: Store) -> None:
    models = ServedModels(store, "ab", 2)
    await models.preload()
    store.version = "2"
    models.configure(store, "ab", {"b"})

    assert await use(models, "b") == digest_of("b2")
    assert await use(models, "a") == digest_of("a")
    with pytest.raises(VocabularyMismatchError) as caught:
        await use(models, "b", digest_of("b"))
    ours, theirs = digest_of("b2").hex(), digest_of("b").hex()
    assert caught.value.metadata == {"ours": ours, "theirs": theirs}
    models.configure(store, "a")
    assert names(models) == ["a"], "who was refused does not use it"


async def test_given_vocabularies_are_served_and_the_older_one_by_its_digest() -> None:
    models = ServedModels.of([served("a", "2"), served("a")])

    assert await use(models, "") == digest_of("a2")
    assert await use(models, "a", digest_of("a")) == digest_of("a")


def test_models_have_to_be_defined_and_those_that_embed_tokenize_at_their_replicas() -> None:
    names = ["smollm2-135m-instruct", "all-minilm-l6-v2"]
    assert tokenized(names, SHIPPED) == ("smollm2-135m-instruct",)
    with pytest.raises(ConfigError, match="use one of"):
        tokenized(["nobody"], SHIPPED)
