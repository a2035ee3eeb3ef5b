"""A whole run on a small target of the real vocabulary."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip(
    "torch", reason="torch is not installed (tools/train_draft/requirements.txt): not run"
)

import torch

from outrider.engines.draft_loading import shipped_draft
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.vocabulary import Vocabulary
from tests.tools.train_draft.test_draft_file import GEOMETRY
from tools.train_draft import distil
from tools.train_draft.__main__ import parse
from tools.train_draft.distil import Run, Stage, later_seeds
from tools.train_draft.draft_file import read_draft, write_draft
from tools.train_draft.self_written import template_of
from tools.train_draft.slots import Chats
from tools.train_draft.target import Floats, Geometry, TargetFile, Tensors, new_tensors

pytestmark = pytest.mark.model


class _Small(TargetFile):
    """New weights for all the ids of a vocabulary, as if a file had them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        rng = np.random.default_rng(0)
        self._rows = rng.normal(0, 0.3, (vocabulary.size, 64)).astype(np.float32)
        self._rows[template_of(vocabulary).answer[0]] *= 2.5  # turns and replies end soon

    @property
    def geometry(self) -> Geometry:
        return replace(GEOMETRY, context_length=512, vocab_size=len(self._rows))

    @property
    def is_llama(self) -> bool:
        return True

    def embedding(self) -> Floats:
        return self._rows

    def student_tensors(self, layers: object, head_ids: npt.NDArray[np.uint32]) -> Tensors:
        return new_tensors(self.geometry, np.ascontiguousarray(self._rows[head_ids]))


def _harvests(count: int) -> Callable[[float], Callable[[], bool]]:
    """In place of seconds: over after so many harvests."""

    def over(seconds: float) -> Callable[[], bool]:
        left = itertools.chain([False] * count, itertools.repeat(True))
        return lambda: next(left)

    return over


def test_a_run_writes_a_draft(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _Small(vocabulary)
    monkeypatch.setattr(distil, "open_target", lambda spec, store: target)
    monkeypatch.setattr(distil, "for_seconds", _harvests(16))
    ids = np.arange(300, dtype=np.uint32)
    shipped = shipped_draft(DEFAULT_MODEL)
    assert shipped is not None
    start = replace(
        read_draft(shipped),
        geometry=target.geometry,
        tensors=target.student_tensors((), ids),
        head_ids=ids,
    )
    write_draft(tmp_path / "start.gguf", start)
    files = ["--start", f"{tmp_path}/start.gguf", "--out", f"{tmp_path}/out.gguf"]
    how = ["--device", "cpu", "--steps", "4", "--batch-tokens", "2000", "--threads", "1"]
    stage = Stage(16, 80, 1.0, (8, 16), (1, 1), 40)
    run = Run(parse(["distil", *files, *how]), [stage])
    chats = run.chats()
    template = template_of(vocabulary)
    for at in range(len(chats)):
        begin, length = int(chats.offsets[at]), int(chats.lengths[at] - chats.replies[at])
        prompt = chats.tokens[begin : begin + length].tolist()
        assert tuple(prompt[-len(template.answer) :]) == template.answer
    run.learn(chats)
    draft = read_draft(tmp_path / "out.gguf")
    assert draft.geometry == run.start.geometry and len(draft.head_ids) == len(ids)
    assert set(vocabulary.stop_ids) <= set(draft.head_ids.tolist())


def test_later_prompts_go_on_with_what_was_said(vocabulary: Vocabulary) -> None:
    template = template_of(vocabulary)
    end = template.answer[0]
    prompt = [*template.begin, *vocabulary.encode("Why?"), *template.answer]
    replies = [[*vocabulary.encode("So it is, and so it was. " * n), end] for n in range(1, 9)]
    texts = [torch.tensor([*prompt, *reply]) for reply in replies]
    lengths = torch.tensor([len(text) for text in texts])
    empty = torch.zeros(0)
    chats = Chats(
        torch.cat(texts),
        lengths.cumsum(0) - lengths,
        lengths,
        torch.tensor([len(reply) for reply in replies]),
        *[empty] * 6,
    )
    stage = Stage(4, 256, 1.0, (8,), (1,), 60, later=True)
    seeds = later_seeds(vocabulary, stage, chats, torch.arange(8), end)
    assert len(seeds) == 60
    said = {tuple(text.tolist()) for text in texts}
    num_turns = num_own = 0
    for seed in seeds:
        begins = [text for text in said if seed.ids[: len(text)] == text]
        num_turns += bool(begins)
        num_own += seed.writes_prompt
        assert seed.writes_prompt or seed.ids[-len(template.answer) :] == template.answer
        if not begins:  # a document
            assert len(seed.ids) > stage.span // 4 and not seed.writes_prompt
    assert 10 < num_turns < 50 and 5 < num_own < num_turns
