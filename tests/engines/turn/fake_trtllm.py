"""What TensorRT-LLM's LLM does, without a model: replies that grow, salts, reports, KV events."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outrider.engines.turn.signatures import Record
from outrider.engines.turn.tensorrt_llm.api import CALLS, SOMETIMES, UNREAD
from tests.engines.turn.recorded import following, shaped, signature_of

VOCABULARY = 64
BLOCK_TOKENS = 32
POOL_BLOCKS = 100
_NAMES = {*CALLS, *SOMETIMES, *UNREAD}
ALLOWED = {
    name: (*CALLS.get(name, ()), *SOMETIMES.get(name, ()), *UNREAD.get(name, ())) for name in _NAMES
}
_ARGS = "tensorrt_llm.llmapi:TorchLlmArgs"


class EngineDeadError(Exception):
    """tensorrt_llm.executor.utils.EngineDeadError, of newer versions."""


def values(**given: Any) -> SimpleNamespace:
    """An object with what was passed."""
    return SimpleNamespace(**given)


@dataclass
class RequestOutput:
    """tensorrt_llm.llmapi.RequestOutput."""

    llm: Any
    ids: list[int]
    sampling: Any
    cached_tokens: int
    finished: bool = False
    aborted: bool = False

    def __post_init__(self) -> None:
        self.outputs = [SimpleNamespace(token_ids=[], finish_reason=None, logprobs=[])]

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.Event().wait() if self.llm.hangs else await asyncio.sleep(0)
        if self.llm.is_dead:
            raise EngineDeadError("the workers are gone")
        if self.llm.fails:
            raise RuntimeError("out of memory")
        written = self.outputs[0]
        for _ in range(self.llm.tokens_at_once):
            self._write(written)
            if written.finish_reason:
                break
        if written.finish_reason:
            self.llm.running.discard(id(self))
        return self

    def _write(self, written: Any) -> None:
        self.ids.append(following(self.ids, VOCABULARY))
        written.token_ids.append(self.ids[-1])
        count = getattr(self.sampling, "logprobs", None)
        if count is not None:
            scores = {(self.ids[-1] + n) % VOCABULARY: -0.5 - n for n in range(count + 1)}
            written.logprobs.append(
                {it: SimpleNamespace(logprob=score, rank=1) for it, score in scores.items()}
            )
        ends = {self.sampling.end_id} if not self.sampling.ignore_eos else set()
        if self.ids[-1] in ends | set(getattr(self.sampling, "stop_token_ids", None) or ()):
            written.finish_reason, self.finished = "stop", True
        elif len(written.token_ids) == self.sampling.max_tokens:
            written.finish_reason, self.finished = "length", True
        elif self.llm.cancels:
            written.finish_reason, self.finished = "cancelled", True

    def abort(self) -> None:
        self.aborted = True
        self.llm.running.discard(id(self))


@dataclass
class FakeLlm:
    """tensorrt_llm.LLM."""

    arguments: dict[str, Any]
    running: set[int] = field(default_factory=set)
    priorities: list[float] = field(default_factory=list)
    is_dead: bool = False
    is_down: bool = False
    hangs: bool = False
    fails: bool = False
    cancels: bool = False
    tokens_at_once: int = 1
    reports_pool: bool = True
    cached: set[tuple[str | None, tuple[int, ...]]] = field(default_factory=set)
    has_run: bool = False

    def __post_init__(self) -> None:
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        levels = [POOL_BLOCKS, 0]
        created = {"type": "created", "num_blocks_per_cache_level": levels}
        self._events.put_nowait({"event_id": 0, "data": created})
        assert self.arguments["skip_tokenizer_init"]

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: Any = None,
        streaming: bool = False,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        if self.is_down or self.is_dead:
            raise RuntimeError("LLM is shutting down")
        assert streaming and not sampling_params.detokenize
        assert isinstance(inputs, list) and inputs
        assert sampling_params.end_id is not None, "needed without a tokenizer"
        self.has_run = True
        self.priorities.append(priority)
        output = RequestOutput(self, list(inputs), sampling_params, self._store(inputs, cache_salt))
        self.running.add(id(output))
        return output

    def _store(self, ids: list[int], salt: str | None) -> int:
        cached = 0
        for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
            key = (salt, tuple(ids[:end]))
            if key in self.cached:
                cached = end
                continue
            self.cached.add(key)
            first = end == BLOCK_TOKENS
            parent = None if first else hash((salt, tuple(ids[: end - BLOCK_TOKENS])))
            tokens = [{"token_id": it} for it in ids[end - BLOCK_TOKENS : end]]
            blocks = [{"block_hash": hash(key), "tokens": tokens}]
            self.publish({"type": "stored", "parent_hash": parent, "blocks": blocks})
        return min(cached, len(ids) - 1)

    def publish(self, data: dict[str, Any]) -> None:
        self._events.put_nowait({"event_id": 1, "data": data})

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[Any]:
        assert self.has_run, "there are none before the first request"
        if self.reports_pool:
            cache = {"maxNumBlocks": POOL_BLOCKS, "freeNumBlocks": 60}
            yield {"numQueuedRequests": 0, "kvCacheStats": cache}

    async def get_kv_cache_events_async(self, timeout: float | None = 2) -> AsyncIterator[Any]:
        assert self.has_run, "there are none before the first request"
        while not self._events.empty():
            yield self._events.get_nowait()

    def shutdown(self) -> None:
        self.is_down = True


class FakeTrtLlm:
    """The package, with the signatures of a recorded version; installed for the import."""

    def __init__(self, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
        self.llms: list[FakeLlm] = []
        self.reports_pool = True
        outer = self

        def make(name: str) -> Any:
            return shaped(record, name, ALLOWED, values)

        class LLM(FakeLlm):
            def __init__(self, **arguments: Any) -> None:
                known = {*signature_of(record, _ARGS).parameters, *UNREAD[_ARGS]}
                assert set(arguments) <= known
                assert set(arguments) <= set(ALLOWED[_ARGS])
                super().__init__(arguments, reports_pool=outer.reports_pool)
                outer.llms.append(self)

        class Output(RequestOutput):
            pass

        for name in ("generate_async", "get_stats_async", "get_kv_cache_events_async", "shutdown"):
            path = f"tensorrt_llm:LLM.{name}"
            try:
                method = shaped(record, path, ALLOWED, getattr(FakeLlm, name), is_method=True)
            except StopIteration:  # of no version that part was read
                method = getattr(FakeLlm, name)
            setattr(LLM, name, method)

        def torch_llm_args(**arguments: Any) -> None:
            raise AssertionError

        signature = signature_of(record, _ARGS)
        unread = [
            next(iter(signature.parameters.values())).replace(name=it) for it in UNREAD[_ARGS]
        ]
        torch_llm_args.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*unread, *signature.parameters.values()]
        )
        package, llmapi = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.llmapi")
        package.__dict__.update(
            __version__=record.version,
            LLM=LLM,
            SamplingParams=make("tensorrt_llm:SamplingParams"),
            llmapi=llmapi,
        )
        llmapi.__dict__.update(
            RequestOutput=Output,
            KvCacheConfig=make("tensorrt_llm.llmapi:KvCacheConfig"),
            TorchLlmArgs=torch_llm_args,
        )
        monkeypatch.setitem(sys.modules, "tensorrt_llm", package)
        monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", llmapi)
        self.package = package
