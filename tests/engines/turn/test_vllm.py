"""The vLLM engine on fakes with the signatures of each recorded version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from outrider.engines.config import EngineConfig
from outrider.engines.turn.base import (
    Ability,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    TurnEngine,
)
from outrider.engines.turn.checkpoint import Checkpoint
from outrider.engines.turn.signatures import records
from outrider.engines.turn.vllm.api import CALLS, READS, import_api
from outrider.engines.turn.vllm.config import VllmOptions
from outrider.engines.turn.vllm.engine import VllmTurnEngine
from outrider.engines.turn.vllm.loading import start_engine
from outrider.engines.turn.vllm.prefixes import BlockTranslator, EventSocket
from outrider.errors import (
    ConfigError,
    EngineError,
    InvalidSamplingError,
    OverloadedError,
    ReplicaLostError,
)
from outrider.session.types import Priority
from tests.engines.turn.contract import TurnEngineContract, ids_of, pieces_of, turn
from tests.engines.turn.fake_vllm import (
    BLOCK_TOKENS,
    NUM_BLOCKS,
    VOCABULARY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    FakeAsyncLlm,
    FakeVllm,
)
from tests.engines.turn.recorded import record_of, versions

CHECKPOINT = Checkpoint(
    vocabulary_size=VOCABULARY, num_tokens=VOCABULARY, max_context_tokens=1024, kv_token_bytes=64
)
NEWEST = versions("vllm")[-1]


async def make_engine(
    tmp_path: Path, version: str = NEWEST, *, has_tokenizer: bool = True, **settings: Any
) -> tuple[VllmTurnEngine, FakeAsyncLlm]:
    """An engine on a fake of that version; settings are VllmOptions' or EngineConfig's."""
    if has_tokenizer:
        (tmp_path / "tokenizer.json").write_text("{}")
    common = {
        it: settings.pop(it)
        for it in ("kv_bytes", "num_blocks", "max_context_tokens")
        if it in settings
    }
    options = VllmOptions(model_dir=tmp_path, **settings)
    fake = FakeVllm(record_of("vllm", version))
    config = EngineConfig(engine="vllm", vllm=options, **common)
    engine = await start_engine(fake.api, config, CHECKPOINT, cast(EventSocket, fake.events))
    return engine, fake.llms[0]


@pytest.fixture(params=versions("vllm"))
async def made(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[VllmTurnEngine, FakeAsyncLlm]]:
    engine, llm = await make_engine(tmp_path, request.param)
    yield engine, llm
    assert not llm.unfinished
    await engine.close()


class TestVllmTurnEngine(TurnEngineContract):
    @pytest.fixture
    def engine(self, made: tuple[VllmTurnEngine, FakeAsyncLlm]) -> TurnEngine:
        return made[0]

    @pytest.fixture
    def lost_engine(self, made: tuple[VllmTurnEngine, FakeAsyncLlm]) -> TurnEngine:
        made[1].is_dead = True
        return made[0]


def test_every_recorded_version_has_all_that_is_used() -> None:
    assert len(records("vllm")) >= 2
    for record in records("vllm"):
        assert not record.in_part
        assert record.lacks(CALLS, READS) == []


async def test_a_reply_is_lost_with_the_process_that_computes(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path)
    async with aclosing(engine.reply(turn(max_tokens=100))) as reply:
        await anext(reply)
        llm.is_dead = True
        with pytest.raises(ReplicaLostError):
            await anext(reply)


async def test_silence_fails_a_reply(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path, silence_timeout_s=0.02)
    llm.hangs = True
    with pytest.raises(EngineError, match="silence_timeout_s"):
        await ids_of(engine, turn())
    assert not llm.unfinished


async def test_a_request_that_fails_fails_alone(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path)
    llm.fails = True
    with pytest.raises(EngineError, match="out of memory"):
        await ids_of(engine, turn())
    llm.fails = False
    assert len(await ids_of(engine, turn())) == 8


async def test_what_vllm_refuses_is_the_request_fault(tmp_path: Path) -> None:
    engine, _ = await make_engine(tmp_path)
    with pytest.raises(InvalidSamplingError, match="out of vocabulary"):
        await ids_of(engine, turn(committed=(VOCABULARY,)))


async def test_no_more_replies_than_it_has_room_for(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path, max_num_seqs=1)
    llm.hangs = True
    waiting = asyncio.create_task(pieces_of(engine, turn()))
    while not llm.unfinished:
        await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="max_num_seqs"):
        await ids_of(engine, turn())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not llm.unfinished


async def test_load_is_what_is_unfinished_and_what_is_free(tmp_path: Path) -> None:
    engine, _ = await make_engine(tmp_path)
    assert (await engine.load()).free_blocks == NUM_BLOCKS
    async with aclosing(engine.reply(turn(max_tokens=100))) as reply:
        await anext(reply)
        load = await engine.load()
        assert (load.running, load.waiting, load.free_blocks) == (1, 0, NUM_BLOCKS * 3 // 4)
    assert (await engine.load()).running == 0


async def test_high_priorities_come_first(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path)
    for priority in sorted(Priority, reverse=True):
        request = turn()
        await ids_of(engine, type(request)(**{**_fields(request), "priority": priority}))
    assert llm.priorities == sorted(llm.priorities)
    assert len(set(llm.priorities)) == len(Priority)


def _fields(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


async def test_settings_reach_vllm(tmp_path: Path) -> None:
    _, llm = await make_engine(
        tmp_path,
        max_num_seqs=3,
        max_num_batched_tokens=512,
        dtype="bfloat16",
        kv_bytes=1 << 20,
        max_context_tokens=512,
    )
    args = llm.args
    assert (args.max_num_seqs, args.max_num_batched_tokens, args.dtype) == (3, 512, "bfloat16")
    assert (args.kv_cache_memory_bytes, args.max_model_len) == (1 << 20, 512)
    assert args.kv_events_config.endpoint.startswith("ipc:")
    assert args.scheduling_policy == "priority"
    assert not args.skip_tokenizer_init


async def test_without_a_tokenizer_there_are_no_grammars(tmp_path: Path) -> None:
    engine, llm = await make_engine(tmp_path, has_tokenizer=False)
    assert llm.args.skip_tokenizer_init
    assert Ability.REGEX not in engine.info.abilities
    assert Ability.LOGIT_BIAS in engine.info.abilities


async def test_a_context_beyond_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_context_tokens is 4096"):
        await make_engine(tmp_path, max_context_tokens=4096)


def test_where_it_is_not_installed_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"docs/guides/vllm\.md"):
        import_api()


IDS = list(range(BLOCK_TOKENS))


def stored(names: list[bytes | int], parent: bytes | int | None, **fields: Any) -> BlockStored:
    return BlockStored(names, parent, IDS * len(names), **fields)


def test_blocks_have_the_salt_of_their_prompts_first() -> None:
    translator = BlockTranslator(BLOCK_TOKENS, 8)
    first, second = translator.translate(
        [
            stored([b"a", b"b"], None, extra_keys=[(b"mine".hex(),), None]),
            stored([5], b"b", extra_keys=[None]),
        ]
    )
    assert first == BlocksStored(b"mine", b"", (b"a", b"b"), tuple(IDS * 2))
    assert second == BlocksStored(b"mine", b"b", (bytes(7) + b"\5",), tuple(IDS))
    removed, cleared = translator.translate([BlockRemoved([b"a"]), AllBlocksCleared()])
    assert removed == BlocksRemoved((b"a",))
    assert cleared == BlocksCleared()
    assert list(translator.translate([stored([b"c"], b"b")])) == [], "its parent is forgotten"


@pytest.mark.parametrize(
    "event",
    [
        stored([b"a"], None, medium="CPU"),
        stored([b"a"], None, group_idx=1),
        stored([b"a"], None, block_size=8),
        stored([b"a"], b"unknown"),
        stored([b"a"], None, extra_keys=[("lora", "salt")]),
        stored([b"a"], None, extra_keys=[(("image", 3),)]),
        stored([b"a"], None, extra_keys=[("no hex",)]),
        BlockRemoved([b"a"], medium="CPU"),
    ],
)
def test_blocks_that_no_prompt_of_ids_reuses_are_left_out(event: Any) -> None:
    assert list(BlockTranslator(BLOCK_TOKENS, 8).translate([event])) == []


def test_the_fake_events_have_the_fields_that_are_recorded() -> None:
    for record in records("vllm"):
        for fake in (BlockStored, BlockRemoved):
            name = f"vllm.distributed.kv_events:{fake.__name__}"
            assert set(fake.__dataclass_fields__) <= record.attributes(name)
