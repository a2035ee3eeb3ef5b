"""The TensorRT-LLM engine on fakes with the signatures of each recorded version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import Ability, BlocksRemoved, BlocksStored, TurnEngine
from outrider.engines.turn.checkpoint import Checkpoint
from outrider.engines.turn.signatures import records
from outrider.engines.turn.tensorrt_llm import api as trtllm_api
from outrider.engines.turn.tensorrt_llm.api import CALLS, READS, SOMETIMES, import_api
from outrider.engines.turn.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.turn.tensorrt_llm.engine import TensorRtLlmTurnEngine
from outrider.engines.turn.tensorrt_llm.loading import start_engine
from outrider.engines.turn.tensorrt_llm.reports import BlockTranslator
from outrider.errors import ConfigError, EngineError, OverloadedError, ReplicaLostError
from outrider.session.types import Priority
from tests.engines.turn.contract import TurnEngineContract, ids_of, pieces_of, turn
from tests.engines.turn.fake_trtllm import (
    BLOCK_TOKENS,
    POOL_BLOCKS,
    VOCABULARY,
    FakeLlm,
    FakeTrtLlm,
)
from tests.engines.turn.recorded import record_of, versions

CHECKPOINT = Checkpoint(
    vocabulary_size=VOCABULARY, num_tokens=VOCABULARY, max_context_tokens=1024, kv_token_bytes=64
)
OLDEST, NEWEST = versions("tensorrt_llm")[0], versions("tensorrt_llm")[-1]
_COMMON = ("kv_bytes", "kv_share", "num_blocks", "max_context_tokens", "vocabulary_size")


async def make_engine(
    monkeypatch: pytest.MonkeyPatch,
    version: str = NEWEST,
    *,
    reports_pool: bool = True,
    **settings: Any,
) -> tuple[TensorRtLlmTurnEngine, FakeLlm]:
    """An engine on a fake of that version; settings are TensorRtLlmOptions' or EngineConfig's."""
    common = {it: settings.pop(it) for it in _COMMON if it in settings}
    fake = FakeTrtLlm(record_of("tensorrt_llm", version), monkeypatch)
    fake.reports_pool = reports_pool
    options = TensorRtLlmOptions(**settings)
    config = EngineConfig(engine="tensorrt-llm", trtllm=options, **common)
    engine = await start_engine(import_api(), config, CHECKPOINT)
    return engine, fake.llms[0]


@pytest.fixture(params=versions("tensorrt_llm"))
async def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TensorRtLlmTurnEngine, FakeLlm]]:
    engine, llm = await make_engine(monkeypatch, request.param)
    yield engine, llm
    await engine.close()
    assert not llm.running
    assert llm.is_down


class TestTensorRtLlmTurnEngine(TurnEngineContract):
    @pytest.fixture
    def engine(self, made: tuple[TensorRtLlmTurnEngine, FakeLlm]) -> TurnEngine:
        return made[0]

    @pytest.fixture
    def lost_engine(self, made: tuple[TensorRtLlmTurnEngine, FakeLlm]) -> TurnEngine:
        made[1].is_dead = True
        return made[0]


def test_every_recorded_version_has_all_that_is_used_as_far_as_it_was_read() -> None:
    assert len(records("tensorrt_llm")) >= 2
    for record in records("tensorrt_llm"):
        assert record.in_part, "read whole: what was unread can be checked now"
        assert record.lacks(CALLS, READS) == []


def test_what_some_versions_have_is_recorded_so() -> None:
    newer = [it for it in records("tensorrt_llm") if it.version != OLDEST]
    for name, wanted in SOMETIMES.items():
        assert record_of("tensorrt_llm", OLDEST).lacks({name: wanted}, {})
        assert any(name in it.names and not it.lacks({name: wanted}, {}) for it in newer)


@pytest.mark.parametrize("version", versions("tensorrt_llm"))
async def test_what_a_version_has_is_used(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch, version)
    api, record = import_api(), record_of("tensorrt_llm", version)
    cache = "tensorrt_llm.llmapi:KvCacheConfig"
    assert api.has_two_cache_managers == (
        cache in record.names and not record.lacks({cache: SOMETIMES[cache]}, {})
    )
    config = llm.arguments["kv_cache_config"]
    assert getattr(config, "use_kv_cache_manager_v2", False) is False
    assert hasattr(config, "use_kv_cache_manager_v2") == api.has_two_cache_managers
    assert llm.arguments["disable_overlap_scheduler"] is False
    assert (Ability.PRIORITY in engine.info.abilities) == api.has_priority
    await engine.close()


async def test_high_priorities_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch)
    llm.priorities.clear()
    for priority in sorted(Priority):
        await ids_of(engine, replace(turn(), priority=priority))
    assert llm.priorities == sorted(set(llm.priorities))
    assert all(0 <= it <= 1 for it in llm.priorities)
    await engine.close()


async def test_tokens_that_come_together_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch)
    one_by_one = await ids_of(engine, turn(max_tokens=11))
    llm.tokens_at_once = 4
    pieces = await pieces_of(engine, turn(max_tokens=11, num_logprobs=3))
    assert [len(piece.ids) for piece in pieces] == [4, 4, 3]
    assert tuple(it for piece in pieces for it in piece.ids) == one_by_one
    assert [len(piece.logprobs) for piece in pieces] == [4, 4, 3]
    assert [piece.cached_tokens is None for piece in pieces] == [False, True, True]
    await engine.close()


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_runtime_that_dies_loses_its_replies(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, llm = await make_engine(monkeypatch)
    llm.is_dead = where == "before"
    async with aclosing(engine.reply(turn(max_tokens=100))) as reply:
        if where == "after":
            await anext(reply)
            llm.is_dead = True
        with pytest.raises(ReplicaLostError, match="gone"):
            await anext(reply)
    with pytest.raises(ReplicaLostError):
        await engine.load()
    await engine.close()


async def test_silence_is_the_end_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch, silence_timeout_s=0.02)
    llm.hangs = True
    for _ in range(2):
        with pytest.raises(ReplicaLostError, match="silence_timeout_s"):
            await ids_of(engine, turn())
    assert not llm.running
    await engine.close()


async def test_a_request_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch)
    llm.fails = True
    with pytest.raises(EngineError, match="out of memory"):
        await ids_of(engine, turn())
    llm.fails, llm.cancels = False, True
    with pytest.raises(EngineError, match="without a reason"):
        await ids_of(engine, turn())
    llm.cancels = False
    assert len(await ids_of(engine, turn())) == 8
    await engine.close()


async def test_no_more_replies_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, llm = await make_engine(monkeypatch, max_batch_size=1)
    llm.hangs = True
    waiting = asyncio.create_task(pieces_of(engine, turn()))
    while not llm.running:
        await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="max_batch_size"):
        await ids_of(engine, turn())
    assert (await engine.load()).running == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not llm.running
    await engine.close()


@pytest.mark.parametrize(
    ("settings", "num_blocks", "context"),
    [
        ({"kv_share": 0.5}, POOL_BLOCKS, 1024),
        ({"num_blocks": 20}, 20, 640),
        ({"kv_bytes": 64 * BLOCK_TOKENS * 50}, 50, 1024),
        ({"num_blocks": 1000, "max_context_tokens": 512}, POOL_BLOCKS, 512),
    ],
)
async def test_the_pool_is_the_lesser_of_what_is_asked_and_what_there_is(
    settings: dict[str, Any], num_blocks: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = await make_engine(monkeypatch, **settings)
    assert (engine.info.num_blocks, engine.info.max_context_tokens) == (num_blocks, context)
    await engine.close()


async def test_the_pool_is_known_from_events_where_statistics_lack_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = await make_engine(monkeypatch, reports_pool=False)
    assert engine.info.num_blocks == POOL_BLOCKS
    await engine.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_context_tokens": 4096}, "max_context_tokens is 4096"),
        ({"vocabulary_size": VOCABULARY + 1}, r"trtllm\.model_dir and model"),
        ({"kv_bytes": 1}, "kv_bytes is 1"),
        ({"kv_share": 1.0}, "less than 1"),
        ({"num_blocks": 2, "max_context_tokens": 512}, "room for 64 tokens"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=words):
        await make_engine(monkeypatch, **settings)


def test_where_it_is_not_installed_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, trtllm_api.PACKAGE, None)
    with pytest.raises(ConfigError, match=r"docs/guides/tensorrt-llm\.md"):
        import_api()


def test_a_package_that_lacks_something_is_refused_with_the_versions_that_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeTrtLlm(record_of("tensorrt_llm", NEWEST), monkeypatch)
    del fake.package.SamplingParams
    with pytest.raises(ConfigError, match=rf"no tensorrt_llm:SamplingParams.*{OLDEST}"):
        import_api()


IDS = list(range(BLOCK_TOKENS))


def stored(names: list[int], parent: int | None, ids: list[int] = IDS) -> dict[str, Any]:
    blocks = [{"block_hash": it, "tokens": [{"token_id": id} for id in ids]} for it in names]
    return {"data": {"type": "stored", "parent_hash": parent, "blocks": blocks}}


def name(number: int) -> bytes:
    return (number % 2**64).to_bytes(8, "big")


def test_a_block_belongs_to_the_group_that_sent_its_ids() -> None:
    translator = BlockTranslator(BLOCK_TOKENS, 8)
    translator.sent([*IDS, 1, 2], b"mine")
    (first,) = translator.translate(stored([-7], None))
    assert first == BlocksStored(b"mine", b"", (name(-7),), tuple(IDS))
    (second,) = translator.translate(stored([8, 9], -7))
    assert second == BlocksStored(b"mine", name(-7), (name(8), name(9)), tuple(IDS * 2))
    removed = {"data": {"type": "removed", "block_hashes": [-7, 4]}}
    assert list(translator.translate(removed)) == [BlocksRemoved((name(-7),))]
    assert list(translator.translate(stored([10], -7))) == [], "its parent is gone"


def test_a_block_that_two_groups_sent_belongs_to_neither() -> None:
    translator = BlockTranslator(BLOCK_TOKENS, 8)
    for salt in (b"mine", b"theirs", b"another's"):
        translator.sent(IDS, salt)
    assert list(translator.translate(stored([1], None))) == []
    assert list(translator.translate(stored([2], 1))) == []


def test_blocks_that_are_not_full_and_prompts_that_nobody_sent_are_left_out() -> None:
    translator = BlockTranslator(BLOCK_TOKENS, 8)
    assert list(translator.translate(stored([1], None))) == []
    translator.sent(IDS, b"")
    assert list(translator.translate(stored([1], None, IDS[:-1]))) == []
    assert list(translator.translate({"data": {"type": "updated", "block_hash": 1}})) == []
