"""JSON by a schema from the real model: the reference's bytes, and valid, whatever happens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest

from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.grammar import json_schema
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.token_table import TokenTable
from services.inference.reference import ReferenceReply, generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, Failed, OpenRequest, SessionCommit
from tests.inference.integration.real_engine import Borrowed, texts_of

if TYPE_CHECKING:
    from outrider.engines.openvino.engine import OpenVinoEngine

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "river_name": {"type": "string", "maxLength": 20},
        "length_in_km": {"type": "integer", "minimum": 1, "maximum": 9999},
        "countries": {"type": "array", "items": {"enum": ["France", "Egypt"]}, "maxItems": 2},
    },
    "required": ["river_name", "length_in_km", "countries"],
    "additionalProperties": False,
}
GRAMMAR = json_schema(SCHEMA)
QUESTIONS = ("Name a river.", "Tell me about the Nile.")
SAMPLINGS = (
    SamplingParams(max_tokens=64, grammar=GRAMMAR),
    SamplingParams(max_tokens=64, grammar=GRAMMAR, temperature=0.8, top_p=0.95, seed=5),
)


@pytest.fixture(scope="module")
def compiled(vocabulary: Vocabulary) -> CompiledGrammar:
    return compile_grammar(TokenTable(vocabulary), GRAMMAR)


@pytest.fixture(scope="module")
def prompts(vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    return [tuple(vocabulary.encode_chat([Message("user", text)])) for text in QUESTIONS]


@pytest.fixture(scope="module")
def truth(
    openvino_engine: OpenVinoEngine,
    vocabulary: Vocabulary,
    compiled: CompiledGrammar,
    prompts: list[tuple[int, ...]],
) -> list[ReferenceReply]:
    return [
        generate(
            Borrowed(openvino_engine),
            prompt,
            sampling,
            texts_of(vocabulary),
            constraint=compiled.constraint(),
        )
        for prompt, sampling in zip(prompts, SAMPLINGS, strict=True)
    ]


def test_replies_are_valid_and_end_by_themselves(truth: list[ReferenceReply]) -> None:
    for reply in truth:
        assert reply.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(reply.text), SCHEMA)


def test_sessions_that_share_calls_drafts_and_caches_equal_the_reference(
    openvino_engine: OpenVinoEngine,
    vocabulary: Vocabulary,
    compiled: CompiledGrammar,
    prompts: list[tuple[int, ...]],
    truth: list[ReferenceReply],
) -> None:
    """Eight sessions: no drafts, the region's, the edge's, right and wrong, and resumed ones; few
    places, so that some wait; the same prompts, so that they share KV."""
    engine = Borrowed(openvino_engine)
    limits = SchedulerLimits(max_sessions=5)
    scheduler = Scheduler(engine.info, limits, texts_of(vocabulary))
    seen: dict[int, list[int]] = {}
    accepted: dict[int, int] = {}

    def take(events: list[Event]) -> None:
        for event in events:
            assert not isinstance(event, Failed), event
            if isinstance(event, SessionCommit):
                commit = event.commit
                seen[event.session_id] += [*commit.accepted_ids, *commit.ids]
                accepted[event.session_id] += commit.accepted

    for number in range(8):
        which = number % 2
        ids = truth[which].ids
        resume = ids[: 5 * (number // 6)]
        right, wrong = ids[len(resume) : len(resume) + 12], (*ids[:2], 17, 17, 17)
        edge_drafts = number in (2, 3, 4, 5)
        request = OpenRequest(
            session_id=number,
            prompt=prompts[which],
            sampling=SAMPLINGS[which],
            resume=resume,
            drafts=Draft(0, 0, right if number < 4 else wrong) if edge_drafts else None,
            edge_drafts=edge_drafts,
            region_drafts=number >= 4,
            cache_salt=b"group",
            constraint=compiled.constraint(),
        )
        seen[number], accepted[number] = list(resume), 0
        take(scheduler.open(request, 0.0))
    for tick in range(400):
        if not scheduler.has_work:
            break
        batch = scheduler.schedule(float(tick))
        assert batch is not None
        rows = batch.run(engine, scheduler.overlapped_work)
        take(scheduler.postprocess(batch, rows, tick + 0.5))
    engine.close()
    assert [tuple(seen[number]) for number in range(8)] == [truth[n % 2].ids for n in range(8)]
    assert accepted[2] == 12 and accepted[0] == 0
