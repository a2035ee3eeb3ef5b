"""Generation on the fake engine, and the shards that replies are kept in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.reference import generate
from tools.train_draft.generation import Generator, _chats, _collect
from tools.train_draft.prompts import Chat, ReplyPlan
from tools.train_draft.replies import NUM_TOP, Reply, load, save, shards, top_of

pytestmark = pytest.mark.model


def _engine(vocabulary: Vocabulary, min_rows: int = 1) -> FakeEngine:
    return FakeEngine(FakeOptions(vocabulary_size=vocabulary.size, min_rows=min_rows))


def _chat(text: str, temperature: float = 0.0, *follow_ups: str) -> Chat:
    plan = ReplyPlan(max_tokens=6, temperature=temperature, seed=len(text))
    return Chat("test", (Message("user", text),), follow_ups, plan)


def _ids_alone(vocabulary: Vocabulary, prompt: list[int], plan: ReplyPlan) -> list[int]:
    sampling = SamplingParams(
        temperature=plan.temperature, seed=plan.seed, max_tokens=plan.max_tokens
    )
    reply = generate(
        _engine(vocabulary),
        prompt,
        sampling,
        lambda params: ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer()),
    )
    return list(reply.ids)


@pytest.mark.parametrize("min_rows", [1, 2])
def test_replies_are_those_of_the_reference(vocabulary: Vocabulary, min_rows: int) -> None:
    chats = [_chat("a" * n, temperature=0.8 * (n % 2)) for n in range(1, 8)]
    generator = Generator(_engine(vocabulary, min_rows), vocabulary, num_slots=3)
    replies = {reply.number: reply for reply in generator.answers(iter(enumerate(chats)))}
    assert sorted(replies) == list(range(7))
    for number, chat in enumerate(chats):
        prompt = vocabulary.encode_chat(chat.messages)
        assert replies[number].prompt.tolist() == prompt
        assert replies[number].ids.tolist() == _ids_alone(vocabulary, prompt, chat.plan)


def test_follow_ups_are_asked_after_the_model_s_own_reply(vocabulary: Vocabulary) -> None:
    generator = Generator(_engine(vocabulary), vocabulary, num_slots=2)
    replies = list(generator.answers(iter([(4, _chat("hello", 0.0, "Why?", "Go on."))])))
    assert [reply.turn for reply in replies] == [0, 1, 2]
    said = vocabulary.decode(i for i in replies[0].ids.tolist() if i not in vocabulary.stop_ids)
    messages = [Message("user", "hello"), Message("assistant", said), Message("user", "Why?")]
    assert replies[1].prompt.tolist() == vocabulary.encode_chat(messages)


def test_chats_that_do_not_fit_are_left_out(vocabulary: Vocabulary) -> None:
    generator = Generator(_engine(vocabulary), vocabulary, num_slots=1)
    chats = [(0, _chat("word " * 600)), (1, _chat("hello"))]
    assert [reply.number for reply in generator.answers(iter(chats))] == [1]


def test_top_of_a_row_is_its_log_probabilities() -> None:
    row = np.random.default_rng(3).normal(0, 4, 5000).astype(np.float32)
    ids, logprobs = top_of(row)
    exact = row - np.log(np.exp(row.astype(np.float64)).sum())
    assert ids.tolist() == np.argsort(-row)[:NUM_TOP].tolist()
    np.testing.assert_allclose(logprobs, exact[ids], atol=0.01)


def _reply(number: int, length: int) -> Reply:
    rng = np.random.default_rng(number)
    return Reply(
        number=number,
        turn=number % 3,
        kind=f"kind{number}",
        temperature=0.8 * (number % 2),
        seed=2**47 + number,
        prompt=rng.integers(0, 49152, 5 + number).astype(np.int32),
        ids=rng.integers(0, 49152, length).astype(np.int32),
        top_ids=rng.integers(0, 49152, (length, NUM_TOP)).astype(np.int32),
        top_logprobs=-rng.random((length, NUM_TOP)).astype(np.float16),
    )


def test_shards_give_back_what_was_saved(tmp_path: Path) -> None:
    replies = [_reply(n, 1 + n) for n in range(5)]
    save(tmp_path / "train-0-00000.npz", replies[:3])
    save(tmp_path / "train-1-00001.npz", replies[3:])
    (tmp_path / "train-0-00002.partial.npz").write_bytes(b"half")
    for found, wanted in zip(load(tmp_path), replies, strict=True):
        assert (found.number, found.turn, found.kind) == (wanted.number, wanted.turn, wanted.kind)
        assert (found.temperature, found.seed) == (wanted.temperature, wanted.seed)
        for name in ("prompt", "ids", "top_ids", "top_logprobs"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name))


def test_collecting_stops_in_time_and_is_taken_up(tmp_path: Path) -> None:
    late = iter([False, True])
    _collect(iter([_reply(n, 2) for n in range(9)]), lambda: next(late), tmp_path, "train-0")
    assert [reply.number for reply in load(tmp_path)] == [0, 1]
    done = {reply.number for reply in load(tmp_path)}
    assert [number for number, _ in _chats("train", range(0, 5), done)] == [2, 3, 4]
    _collect(iter([_reply(2, 2)]), lambda: False, tmp_path, "train-0")
    assert len(shards(tmp_path)) == 2
