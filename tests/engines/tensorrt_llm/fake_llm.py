"""A stand-in for tensorrt_llm with the parts of its API that are used, strict about arguments.

What matters of the runtime: the row behind a token is a function of the ids up to it; a request's
KV stays in a reuse tree when it is done, per salt; the next request with the same beginning gets
no rows for the cached part, but always one for its last token; a row may have an entry too many,
of another position and of a rank that is taken; a request with rows holds prompt tokens x
vocabulary x 4 bytes until it is done; a request that is aborted leaves nothing behind, but one with
rows takes the worker with it; result() may wait for ever; there are no reports before the first
request.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from outrider.engines.config import EngineConfig
from outrider.engines.tensorrt_llm.api import Api
from outrider.engines.tensorrt_llm.checkpoint import Checkpoint
from outrider.engines.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.tensorrt_llm.engine import TensorRtLlmEngine
from outrider.engines.tensorrt_llm.loading import engine_info, start_engine
from tests.engines.tensorrt_llm.fake_types import (
    CompletionOutput,
    KvCacheConfig,
    KvCacheRetentionConfig,
    Logprob,
    SamplingParams,
    TokenRangeRetentionConfig,
    TorchCompileConfig,
)

VOCABULARY = 64
"""Ids that the model scores."""
CHECKPOINT = Checkpoint(VOCABULARY, VOCABULARY, max_context_tokens=512, kv_token_bytes=64)
_REPETITION = 0.8
"""Share of rows whose best id follows from the last token alone: drafts then hit."""
_LOGIT_STEP = 0.125
"""Logits are multiples of this, as those of bf16 are: equal ones are common."""


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
        """`timeout` is not heeded."""
        if not self.done:
            self.llm.finish(self)
        return self

    def abort(self) -> None:
        assert not self.done
        self.done = self.aborted = True
        self.llm.in_flight.remove(self)
        self.llm.down |= bool(self.params.prompt_logprobs)

    @property
    def logits_bytes(self) -> int:
        return len(self.ids) * VOCABULARY * 4 if self.params.prompt_logprobs else 0


class LLM:
    """Computes a request when its result is asked for."""

    most_logits_bytes = 0
    num_computed = 0
    fail_on: int | None = None
    """Number of the request, from 1, that fails; 0: the next one is refused."""
    resume: threading.Event | None = None
    """Requests hang until it is set."""
    started = False
    reports = True
    down = False

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
        torch_compile_config: TorchCompileConfig | None = None,
    ) -> None:
        assert skip_tokenizer_init and kv_cache_config is not None
        self.torch_compile = torch_compile_config
        self.pool = kv_cache_config
        self.max_seq_len = max_seq_len or 0
        self.in_flight: list[RequestOutput] = []
        self.requests: list[RequestOutput] = []
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
        settings = (sampling_params, kv_cache_retention_config, cache_salt)
        return self._enqueue(RequestOutput(self, tuple(inputs), *settings))

    def _enqueue(self, output: RequestOutput) -> RequestOutput:
        self.started = True
        self.requests.append(output)
        self.in_flight.append(output)
        held = sum(one.logits_bytes for one in self.in_flight)
        self.most_logits_bytes = max(self.most_logits_bytes, held)
        return output

    def finish(self, output: RequestOutput) -> None:
        if self.resume is not None:
            self.resume.wait()
        if self.fail_on is not None and self.requests.index(output) + 1 == self.fail_on:
            output.done = True
            self.in_flight.remove(output)
            raise RequestError("out of memory")
        cached = self.cached(output.ids, output.salt)
        rows = None
        if output.params.prompt_logprobs:
            # The entry "that followed" is counted from the front, as if all rows were there.
            rows = [
                top(output.ids[: end + 1], output.params.prompt_logprobs, followed)
                for end, followed in zip(
                    range(cached, len(output.ids)), (*output.ids[1:], 0), strict=False
                )
            ]
        self.num_computed += len(output.ids) - cached
        if self.pool.enable_block_reuse:
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

    def forget(self) -> None:
        """Be as new, but for the first request having been made."""
        self._cached.clear()
        self.requests.clear()
        self.num_computed = self.most_logits_bytes = 0

    def evict(self) -> None:
        """Drop everything cached, as memory pressure may at any time."""
        self._cached.clear()

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        if not self.started or not self.reports:
            return []
        return [
            {"iter": 0, "numActiveRequests": 9},
            {
                "iter": 1,
                "numActiveRequests": len(self.in_flight),
                "numQueuedRequests": 2,
                "kvCacheStats": {
                    "maxNumBlocks": self.pool.num_blocks,
                    "freeNumBlocks": 60,
                    "usedNumBlocks": 40,
                    "reusedBlocks": 7,
                    "cacheHitRate": 0.5,
                },
            },
        ]

    def get_kv_cache_events(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        assert self.started, "KV Event IterationResult is not properly instantiated."
        levels = [self.pool.num_blocks, 0]
        return [
            {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": levels}},
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
            {"event_id": 2, "data": {"type": "removed", "block_hashes": [11]}},
            {"event_id": 3, "data": {"type": "updated", "block_hash": 12}},
        ]

    def shutdown(self) -> None:
        self.down = True


def top(ids: Sequence[int], count: int, followed: int) -> dict[int, Logprob]:
    """The likeliest ids behind a prefix, and an entry for `followed` if it is not among them."""
    digest = hashlib.blake2b(np.array(ids, np.int32).tobytes(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    logits = np.round(rng.normal(0.0, 2.0, VOCABULARY) / _LOGIT_STEP) * _LOGIT_STEP
    if rng.random() < _REPETITION:
        logits[(ids[-1] * 5 + 3) % 16] += 12.0
    logprobs = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-logprobs, kind="stable")[:count].tolist()
    ranked = {token: Logprob(float(logprobs[token]), rank + 1) for rank, token in enumerate(best)}
    if followed not in ranked:
        above = int((logprobs > logprobs[followed]).sum())
        ranked[followed] = Logprob(float(logprobs[followed]), above + 1)
    return ranked


API = Api(
    version="1.2.1",
    make_llm=LLM,
    sampling_params=SamplingParams,
    kv_cache_config=KvCacheConfig,
    torch_compile_config=TorchCompileConfig,
    retention_config=KvCacheRetentionConfig,
    token_range=TokenRangeRetentionConfig,
)


def make_engine(
    num_ids: int = 0, checkpoint: Checkpoint = CHECKPOINT, **settings: Any
) -> tuple[TensorRtLlmEngine, LLM]:
    """An engine on a stand-in that serves so many ids of it (0: all); settings are
    TensorRtLlmOptions'."""
    options = TensorRtLlmOptions(**{"num_candidates": VOCABULARY, **settings})
    config = EngineConfig(
        engine="tensorrt-llm", num_blocks=256, vocabulary_size=num_ids, trtllm=options
    )
    made: list[LLM] = []

    def make_llm(**arguments: Any) -> LLM:
        made.append(LLM(**arguments))
        return made[0]

    api = replace(API, make_llm=make_llm)
    engine = start_engine(api, config, checkpoint, engine_info(config, checkpoint))
    made[0].forget()
    return engine, made[0]
