"""How ik_llama.cpp is driven, on a library that stands in for it: its wheel is no dependency."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.peers import ik_llamacpp_worker

VOCABULARY_SIZE = 50


class Library:
    """The likeliest token behind another one is the next number."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.batches: list[int] = []
        self._ctypes_api = SimpleNamespace(llama_batch_free=lambda batch: None)
        self._internals = SimpleNamespace(make_batch_range=self._batch)
        self._model = SimpleNamespace(n_vocab=VOCABULARY_SIZE)
        self._context = self
        self.status = 0

    def IkLlama(self, model: str, **how: Any) -> Library:
        return self

    def _batch(self, tokens: Sequence[int], pos_start: int) -> list[int]:
        assert pos_start == len(self.held)
        self.batches.append(len(tokens))
        return list(tokens)

    def decode(self, batch: list[int]) -> int:
        self.held += batch
        return self.status

    def kv_cache_clear(self) -> None:
        self.held.clear()

    def get_logits(self, index: int) -> Any:
        row = np.zeros(VOCABULARY_SIZE, np.float32)
        row[(self.held[-1] + 1) % VOCABULARY_SIZE] = 1
        return (ctypes.c_float * VOCABULARY_SIZE)(*row)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    stand_in = Library()
    found = {"ik_llama_cpp": stand_in, "numpy": np}
    monkeypatch.setattr(ik_llamacpp_worker, "import_module", lambda name: found[name])
    return stand_in


def job(*prompts: Sequence[int], max_tokens: int = 4, ignore_eos: bool = False) -> dict[str, Any]:
    asked = [{"prompt": list(prompt), "max_tokens": max_tokens} for prompt in prompts]
    return {"requests": asked, "ignore_eos": ignore_eos, "stop_ids": [30]}


def ids(engine: ik_llamacpp_worker.Engine, work: dict[str, Any]) -> list[list[int]]:
    return [answer["ids"] for answer in engine.run(work)["answers"]]


def test_each_reply_begins_anew_and_ends_where_it_should(library: Library) -> None:
    engine = ik_llamacpp_worker.Engine("m.gguf", 1)
    assert ids(engine, job([1, 2], [27])) == [[3, 4, 5, 6], [28, 29, 30]]
    assert ids(engine, job([27], ignore_eos=True)) == [[28, 29, 30, 31]]
    answer = engine.run(job([1]))["answers"][0]
    assert sorted(answer["token_s"]) == answer["token_s"] and len(answer["token_s"]) == 4


def test_a_prompt_is_read_in_parts_of_which_all_agree(library: Library) -> None:
    assert ids(ik_llamacpp_worker.Engine("m.gguf", 1), job(range(40), max_tokens=2)) == [[40, 41]]
    assert library.batches == [16, 16, 8, 1]


def test_a_call_that_fails_is_told(library: Library) -> None:
    library.status = 1
    with pytest.raises(RuntimeError, match="llama_decode answered 1"):
        ik_llamacpp_worker.Engine("m.gguf", 1).run(job([1]))
