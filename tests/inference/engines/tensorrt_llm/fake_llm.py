"""A stand-in for tensorrt_llm with the parts of its API that are used, strict about arguments.

What matters of the runtime: the row behind a token is a function of the ids up to it; a request's
KV stays in a reuse tree when it is done, per salt; the next request with the same beginning gets
no rows for the cached part, but always one for its last token; a request with rows holds prompt
tokens x vocabulary x 4 bytes until it is done; a request that is aborted leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

import numpy as np

from services.inference.engines.base import EngineInfo
from services.inference.engines.config import EngineConfig
from services.inference.engines.tensorrt_llm.api import Api
from services.inference.engines.tensorrt_llm.config import TensorRtLlmOptions
from services.inference.engines.tensorrt_llm.engine import TensorRtLlmEngine
from services.inference.engines.tensorrt_llm.loading import Checkpoint, engine_info, make_llm

VOCABULARY = 64
CHECKPOINT = Checkpoint(VOCABULARY, max_context_tokens=512, kv_token_bytes=64)
_REPETITION = 0.8
"""Share of rows whose best id follows from the last token alone: drafts then hit."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int = 32
    prompt_logprobs: int | None = None
    top_k: int | None = None
    ignore_eos: bool = False
    end_id: int | None = None
    pad_id: int | None = None
    detokenize: bool = True


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    event_buffer_max_size: int = 0
    tokens_per_block: int = 32


@dataclass(frozen=True, slots=True)
class TokenRangeRetentionConfig:
    token_start: int
    token_end: int | None = None
    priority: int = 35
    duration_ms: object = None


@dataclass(frozen=True, slots=True)
class KvCacheRetentionConfig:
    token_range_retention_configs: Sequence[TokenRangeRetentionConfig]
    decode_retention_priority: int = 35
    decode_duration_ms: object = None

    def __post_init__(self) -> None:
        ends = [one.token_end for one in self.token_range_retention_configs]
        starts = [one.token_start for one in self.token_range_retention_configs]
        assert ends[:-1] == starts[1:], "ranges must follow each other"
        assert all(end is None or end > start for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    prompt_logprobs: list[dict[int, Logprob]] | None


class RequestError(RuntimeError):
    """The runtime's own."""


@dataclass(slots=True, eq=False)
class RequestOutput:
    llm: LLM
    ids: tuple[int, ...]
    params: SamplingParams
    retention: KvCacheRetentionConfig
    salt: str | None
    outputs: list[CompletionOutput] = field(default_factory=list)
    done: bool = False
    aborted: bool = False

    def result(self, timeout: float | None = None) -> RequestOutput:
        if not self.done:
            self.llm.finish(self, timeout)
        return self

    def abort(self) -> None:
        assert not self.done
        self.done = self.aborted = True
        self.llm.in_flight.remove(self)

    @property
    def logits_bytes(self) -> int:
        return len(self.ids) * VOCABULARY * 4 if self.params.prompt_logprobs else 0


class LLM:
    """Computes a request when its result is asked for."""

    def __init__(
        self,
        model: str,
        *,
        skip_tokenizer_init: bool = False,
        tensor_parallel_size: int = 1,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = 8192,
        max_seq_len: int | None = None,
        enable_chunked_prefill: bool = False,
        enable_iter_perf_stats: bool = False,
        kv_cache_config: KvCacheConfig | None = None,
    ) -> None:
        assert skip_tokenizer_init
        assert kv_cache_config is not None
        self.reuse = kv_cache_config.enable_block_reuse
        self.max_seq_len = max_seq_len or 0
        self.in_flight: list[RequestOutput] = []
        self.requests: list[RequestOutput] = []
        self.most_logits_bytes = 0
        self.num_computed = 0
        self.fail_on: int | None = None
        """Number of the request, from 1, that fails; 0: the next one is refused."""
        self.hang = False
        self.down = False
        self._cached: dict[str | None, set[tuple[int, ...]]] = {}

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        *,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        assert sampling_params is not None and kv_cache_retention_config is not None
        assert isinstance(inputs, list) and all(type(token) is int for token in inputs)
        assert sampling_params.end_id is not None, "needed without a tokenizer"
        assert sampling_params.max_tokens == 1 and not streaming
        if self.down or self.fail_on == 0:
            raise RuntimeError("LLM is shutting down")
        if not 0 < len(inputs) < self.max_seq_len:
            raise ValueError("the prompt is too long")
        output = RequestOutput(
            self, tuple(inputs), sampling_params, kv_cache_retention_config, cache_salt
        )
        self.requests.append(output)
        self.in_flight.append(output)
        held = sum(one.logits_bytes for one in self.in_flight)
        self.most_logits_bytes = max(self.most_logits_bytes, held)
        return output

    def finish(self, output: RequestOutput, timeout: float | None) -> None:
        if self.hang:
            assert timeout is not None
            raise Empty
        if self.fail_on is not None and self.requests.index(output) + 1 == self.fail_on:
            raise RequestError("out of memory")
        cached = self.cached(output.ids, output.salt)
        rows = None
        if output.params.prompt_logprobs:
            rows = [
                top(output.ids[: end + 1], output.params.prompt_logprobs)
                for end in range(cached, len(output.ids))
            ]
        self.num_computed += len(output.ids) - cached
        if self.reuse:
            tree = self._cached.setdefault(output.salt, set())
            tree.update(output.ids[:end] for end in range(1, len(output.ids) + 1))
        output.outputs.append(CompletionOutput(rows))
        output.done = True
        self.in_flight.remove(output)

    def cached(self, ids: Sequence[int], salt: str | None) -> int:
        """Leading tokens whose KV is there; the last one's never counts."""
        tree = self._cached.get(salt, set())
        most = 0
        while most < len(ids) - 1 and tuple(ids[: most + 1]) in tree:
            most += 1
        return most

    def evict(self) -> None:
        """Drop everything cached, as memory pressure may at any time."""
        self._cached.clear()

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        return [
            {"iter": 0, "numActiveRequests": 9},
            {
                "iter": 1,
                "numActiveRequests": len(self.in_flight),
                "numQueuedRequests": 2,
                "kvCacheStats": {
                    "maxNumBlocks": 100,
                    "freeNumBlocks": 60,
                    "usedNumBlocks": 40,
                    "reusedBlocks": 7,
                    "cacheHitRate": 0.5,
                },
            },
        ]

    def get_kv_cache_events(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        return [
            {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [8, 0]}},
            {
                "event_id": 1,
                "data": {
                    "type": "stored",
                    "parent_hash": None,
                    "blocks": [
                        {"block_hash": 11, "tokens": [{"token_id": 5}, {"token_id": 6}]},
                        {"block_hash": 12, "tokens": [{"token_id": 7}]},
                    ],
                },
            },
            {"event_id": 2, "data": {"type": "removed", "block_hashes": [11, 12]}},
        ]

    def shutdown(self) -> None:
        self.down = True


def top(ids: Sequence[int], count: int) -> dict[int, Logprob]:
    """The likeliest ids behind a prefix, in no order a caller may rely on."""
    digest = hashlib.blake2b(np.array(ids, np.int32).tobytes(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    logits = rng.normal(0.0, 2.0, VOCABULARY)
    if rng.random() < _REPETITION:
        logits[(ids[-1] * 5 + 3) % 16] += 12.0
    logprobs = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-logprobs, kind="stable")[:count].tolist()
    ranked = {token: Logprob(float(logprobs[token]), rank + 1) for rank, token in enumerate(best)}
    followed = int(rng.integers(VOCABULARY))
    if followed not in ranked:  # The entry some versions add; its rank lies beyond `count`.
        beyond = int((logprobs > logprobs[followed]).sum()) + 1
        ranked[followed] = Logprob(float(logprobs[followed]), beyond)
    return dict(reversed(ranked.items()))


API = Api(
    version="1.2.1",
    make_llm=LLM,
    sampling_params=SamplingParams,
    kv_cache_config=KvCacheConfig,
    retention_config=KvCacheRetentionConfig,
    token_range=TokenRangeRetentionConfig,
)


def make_engine(**settings: Any) -> tuple[TensorRtLlmEngine, LLM]:
    """An engine on a stand-in; settings are TensorRtLlmOptions'."""
    options = TensorRtLlmOptions(**{"num_candidates": VOCABULARY, **settings})
    info: EngineInfo = engine_info(
        EngineConfig(engine="tensorrt-llm", num_blocks=256, trtllm=options), CHECKPOINT
    )
    llm = make_llm(API, options, info)
    assert isinstance(llm, LLM)
    return TensorRtLlmEngine(llm, API, options, info), llm
