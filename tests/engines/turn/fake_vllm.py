"""What vLLM's AsyncLLM does, without a model: deltas, salts, priorities, KV events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from outrider.engines.turn.prefix_hub import PrefixHub
from outrider.engines.turn.signatures import Record
from outrider.engines.turn.vllm.api import CALLS, Api
from outrider.engines.turn.vllm.prefixes import BlockTranslator
from tests.engines.turn.recorded import following, shaped

VOCABULARY = 64
BLOCK_TOKENS = 16
NUM_BLOCKS = 128
_LLM = "vllm.v1.engine.async_llm:AsyncLLM"


class EngineDeadError(Exception):
    """vllm.v1.engine.exceptions.EngineDeadError."""


class VLLMClientError(Exception):
    """vllm.exceptions.VLLMClientError."""


def values(**given: Any) -> SimpleNamespace:
    """An object with what was passed."""
    return SimpleNamespace(**given)


def tokens_input(prompt_token_ids: list[int], cache_salt: str | None = None) -> dict[str, Any]:
    """vllm.inputs.tokens_input."""
    salt = {} if cache_salt is None else {"cache_salt": cache_salt}
    return {"type": "token", "prompt_token_ids": prompt_token_ids, **salt}


@dataclass
class BlockStored:
    """vllm.distributed.kv_events.BlockStored."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int = BLOCK_TOKENS
    medium: str | None = "GPU"
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


@dataclass
class BlockRemoved:
    """vllm.distributed.kv_events.BlockRemoved."""

    block_hashes: list[bytes | int]
    medium: str | None = "GPU"
    group_idx: int | None = None


@dataclass
class AllBlocksCleared:
    """vllm.distributed.kv_events.AllBlocksCleared."""


class FakeEvents:
    """Stands where the socket for KV events does."""

    endpoint = "ipc:///nowhere"

    def __init__(self) -> None:
        self.is_open = False
        self._out: tuple[BlockTranslator, PrefixHub] | None = None

    def open(self) -> None:
        self.is_open = True

    def read(self, translator: BlockTranslator, hub: PrefixHub) -> None:
        assert self.is_open, "events are missed that come before"
        self._out = (translator, hub)

    def publish(self, *events: Any) -> None:
        assert self._out is not None
        translator, hub = self._out
        for event in translator.translate(events):
            hub.tell(event)

    async def close(self) -> None:
        self.is_open = False


@dataclass
class FakeAsyncLlm:
    """vllm.v1.engine.async_llm.AsyncLLM."""

    args: Any
    stat_loggers: list[Any]
    events: FakeEvents
    unfinished: set[str] = field(default_factory=set)
    priorities: list[int] = field(default_factory=list)
    is_dead: bool = False
    hangs: bool = False
    fails: bool = False
    cached: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=BLOCK_TOKENS, num_gpu_blocks=NUM_BLOCKS),
            model_config=SimpleNamespace(
                max_model_len=self.args.max_model_len, get_vocab_size=lambda: VOCABULARY
            ),
        )
        self.logger = self.stat_loggers[0](self.vllm_config, 0)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        if self.is_dead:
            raise EngineDeadError("EngineCore encountered an issue.")
        assert prompt["type"] == "token", "prompts that are not rendered yet are deprecated"
        assert not sampling_params.detokenize, "it needs a tokenizer"
        if max(prompt["prompt_token_ids"]) >= VOCABULARY:
            raise VLLMClientError("Token id is out of vocabulary")
        self.unfinished.add(request_id)
        self.priorities.append(priority)
        try:
            cached = self._store(prompt)
            self.logger.record(
                SimpleNamespace(num_waiting_reqs=0, kv_cache_usage=0.25), None, None, 0
            )
            async for it in self._deltas(prompt["prompt_token_ids"], sampling_params, cached):
                yield it
        finally:
            self.unfinished.discard(request_id)

    async def _deltas(
        self, prompt: list[int], sampling: Any, cached: int
    ) -> AsyncGenerator[Any, None]:
        ids = list(prompt)
        while True:
            await asyncio.Event().wait() if self.hangs else await asyncio.sleep(0)
            if self.is_dead:
                raise EngineDeadError("EngineCore encountered an issue.")
            if self.fails:
                raise RuntimeError("out of memory")
            ids.append(following(ids, VOCABULARY))
            reason = None
            if ids[-1] in sampling.stop_token_ids:
                reason = "stop"
            elif len(ids) - len(prompt) == sampling.max_tokens:
                reason = "length"
            count = getattr(sampling, "logprobs", None)
            scores = {(ids[-1] + n) % VOCABULARY: -0.5 - n for n in range((count or 0) + 1)}
            place = {it: SimpleNamespace(logprob=score, rank=1) for it, score in scores.items()}
            written = SimpleNamespace(
                token_ids=[ids[-1]],
                finish_reason=reason,
                logprobs=None if count is None else [place],
            )
            yield SimpleNamespace(
                outputs=[written], finished=reason is not None, num_cached_tokens=cached
            )
            if reason is not None:
                return

    def _store(self, prompt: Any) -> int:
        """Cache full blocks and tell of them; how many ids were cached."""
        ids, salt = prompt["prompt_token_ids"], prompt.get("cache_salt", "")
        cached = 0
        for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
            key = (salt, tuple(ids[:end]))
            if key in self.cached:
                cached = end
                continue
            self.cached.add(key)
            parent = (salt, tuple(ids[: end - BLOCK_TOKENS]))
            first = end == BLOCK_TOKENS
            self.events.publish(
                BlockStored(
                    block_hashes=[_hash(key)],
                    parent_block_hash=None if first else _hash(parent),
                    token_ids=ids[end - BLOCK_TOKENS : end],
                    extra_keys=[(salt,)] if first and salt else [None],
                )
            )
        return min(cached, len(ids) - 1)

    def get_num_unfinished_requests(self) -> int:
        return len(self.unfinished)

    async def check_health(self) -> None:
        if self.is_dead:
            raise EngineDeadError("EngineCore encountered an issue.")

    def shutdown(self) -> None:
        self.is_dead = True


def _hash(key: tuple[str, tuple[int, ...]]) -> bytes:
    return repr(key).encode()[-24:] + len(key[1]).to_bytes(2, "big")


class FakeVllm:
    """The package, with the signatures of a recorded version."""

    def __init__(self, record: Record) -> None:
        self.events = FakeEvents()
        self.llms: list[FakeAsyncLlm] = []

        def make(name: str) -> Any:
            return shaped(record, name, CALLS, values)

        def start(engine_args: Any, stat_loggers: list[Any]) -> FakeAsyncLlm:
            llm = FakeAsyncLlm(engine_args, stat_loggers, self.events)
            llm.generate = shaped(record, f"{_LLM}.generate", CALLS, llm.generate)  # type: ignore[method-assign]
            self.llms.append(llm)
            return llm

        self.api = Api(
            version=record.version,
            start=shaped(record, f"{_LLM}.from_engine_args", CALLS, start),
            engine_args=make("vllm:AsyncEngineArgs"),
            tokens_input=shaped(record, "vllm.inputs:tokens_input", CALLS, tokens_input),
            sampling_params=make("vllm:SamplingParams"),
            structured_outputs=make("vllm.sampling_params:StructuredOutputsParams"),
            structured_outputs_config=make("vllm.config:StructuredOutputsConfig"),
            kv_events_config=make("vllm.config:KVEventsConfig"),
            delta="DELTA",
            dead_error=EngineDeadError,
            refused_error=VLLMClientError,
        )
