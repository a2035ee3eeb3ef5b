"""Limits of reasoning in a whole mesh, real but for its engine: the reply is the reference's, with
drafts, and when a replica dies within its reasoning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.client import ChatResult, Client, Committed, Message, SamplingParams
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.parser import read_reply
from outrider.reply_parsing.reasoning import begins_in_reasoning
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.reply import ReplyText
from outrider.testing import eventually
from services.inference.grammars.reply_constraint import constraint_of
from services.inference.grammars.token_table import TokenTable
from services.inference.reference import ReferenceReply, generate
from tests.inference.harness import GatedEngine
from tests.mesh import Mesh, running_mesh
from tests.models import thinking_templates
from tests.models.thinking_templates import FAMILIES

ASK = [Message("user", "two and two?")]
BUDGET = 40
LONG = SamplingParams(
    max_tokens=90, temperature=0.8, seed=5, ignore_eos=True, max_thinking_tokens=BUDGET
)


def options(vocabulary: Vocabulary) -> FakeOptions:
    return FakeOptions(vocabulary_size=vocabulary.size, min_rows=2, repetition=0.5)


class Within(GatedEngine):
    """Its gate holds what computes within the reasoning of a reply."""

    def is_held(self, slices: Sequence[SequenceSlice]) -> bool:
        return any(part.past > self.num_prompt + BUDGET // 2 for part in slices)

    num_prompt = 0


def opening_think(vocabulary: Vocabulary, sampling: SamplingParams) -> SamplingParams:
    """For a model that opens its reasoning itself: the tag that does is the likeliest token."""
    tags = vocabulary.reply_format().reasoning
    assert tags is not None
    (think,) = TokenTable(vocabulary).ids_of(tags.begin)
    return replace(sampling, logit_bias={think: 22.0})


def served(vocabulary: Vocabulary, sampling: SamplingParams) -> SamplingParams:
    """As the edge serves it."""
    found = vocabulary.reply_format()
    special = vocabulary.needs_special_tokens(replace(found, call_syntax=None))
    return replace(sampling, reasoning_tags=found.reasoning, special_tokens=special)


def reference(vocabulary: Vocabulary, sampling: SamplingParams) -> ReferenceReply:
    prompt, params = vocabulary.encode_chat(ASK), served(vocabulary, sampling)

    def new_reply(params: SamplingParams) -> ReplyText:
        detokenizer = vocabulary.detokenizer(keep_special=params.special_tokens)
        return ReplyText(params, vocabulary.stop_ids, detokenizer)

    constraint = constraint_of(TokenTable(vocabulary), params, prompt)
    engine = FakeEngine(options(vocabulary))
    return generate(engine, prompt, params, new_reply, constraint=constraint)


@asynccontextmanager
async def two_replicas(
    vocabulary: Vocabulary, state_dir: Path
) -> AsyncIterator[tuple[Mesh, Client, list[Within]]]:
    """The engines step until a test closes their gates."""
    engines = list[Within]()

    def engine() -> Within:
        engines.append(Within(options(vocabulary)))
        engines[-1].num_prompt = len(vocabulary.encode_chat(ASK))
        engines[-1].gate.set()
        return engines[-1]

    async with (
        running_mesh(vocabulary, state_dir, tokenizers=1, replicas=2, engine=engine) as mesh,
        mesh.client() as client,
    ):
        yield mesh, client, engines


def check_is_ended(vocabulary: Vocabulary, result: ChatResult) -> None:
    """The reasoning of a reply has as many tokens as it may, and an answer follows."""
    found = vocabulary.reply_format()
    assert found.reasoning is not None
    prompt = vocabulary.encode_chat(ASK)
    is_open = begins_in_reasoning(found.reasoning, prompt, vocabulary.token_bytes)
    end = TokenTable(vocabulary).ids_of(found.reasoning.end)
    at = BUDGET + (not is_open)
    assert result.ids[at : at + len(end)] == end
    read = read_reply(result.text, replace(found, begins_in_reasoning=is_open), "")
    assert (read.reasoning, read.content) == (result.reasoning, result.content)
    assert result.reasoning and result.content
    # The last token of an end tag makes it whole; those before it are still reasoning.
    assert result.usage.reasoning_tokens == BUDGET + len(end) - 1


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_reply_with_drafts_is_the_references(family: str, tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(FAMILIES[family])
    sampling = LONG if family == "r1" else opening_think(vocabulary, LONG)
    truth = reference(vocabulary, sampling)
    async with two_replicas(vocabulary, tmp_path) as (_, client, _):
        async with client.chat(ASK, sampling=sampling, prediction=truth.text) as chat:
            result = await chat.result()
        async with client.chat(ASK, sampling=sampling, thin=True) as chat:
            thin = await chat.result()
        async with client.chat(ASK, sampling=sampling, speculation="off") as chat:
            alone = await chat.result()
    assert result.ids == thin.ids == alone.ids == truth.ids
    assert result.usage.accepted_tokens > 0 and alone.usage.draft_tokens == 0
    check_is_ended(vocabulary, result)


@pytest.mark.parametrize("family", ["qwen3", "r1"])
async def test_a_replica_that_dies_within_reasoning_changes_no_token(
    family: str, tmp_path: Path
) -> None:
    vocabulary = thinking_templates.vocabulary_of(FAMILIES[family])
    sampling = LONG if family == "r1" else opening_think(vocabulary, LONG)
    truth = reference(vocabulary, sampling)
    async with two_replicas(vocabulary, tmp_path) as (mesh, client, engines):
        for engine in engines:
            engine.gate.clear()
        async with client.chat(ASK, sampling=sampling) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    break
            await eventually(lambda: any(engine.waiting.is_set() for engine in engines))
            (first,) = (n for n, engine in enumerate(engines) if engine.waiting.is_set())
            engines[1 - first].gate.set()
            dying = asyncio.create_task(mesh.replicas[first].replica.stop())
            result = await chat.result()
            engines[first].gate.set()
            await dying
        assert result.replica == "ab"[1 - first], "the other one ended it"
    assert result.ids == truth.ids
    check_is_ended(vocabulary, result)


async def test_a_grammar_holds_behind_reasoning(tmp_path: Path) -> None:
    vocabulary = thinking_templates.vocabulary_of(FAMILIES["r1"])
    sampling = replace(LONG, ignore_eos=False, grammar=Grammar(GrammarKind.REGEX, "(ab|cd){8}!"))
    truth = reference(vocabulary, sampling)
    async with two_replicas(vocabulary, tmp_path) as (_, client, _):
        async with client.chat(ASK, sampling=sampling) as chat:
            result = await chat.result()
    assert result.ids == truth.ids
    check_is_ended(vocabulary, result)
    assert result.content.endswith("!") and set(result.content) <= set("abcd!")
