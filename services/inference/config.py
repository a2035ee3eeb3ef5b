"""The inference service's settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

from outrider.engines.config import EngineConfig, EngineName, Precision
from outrider.engines.fake import FakeOptions
from outrider.engines.tensorrt_llm.config import TensorRtLlmOptions
from outrider.errors import ConfigError
from outrider.tls.config import TlsConfig
from services.inference.scheduler.limits import SchedulerLimits

_LIMITS = SchedulerLimits()
_FAKE = FakeOptions()
_ENGINE = EngineConfig()
_TRTLLM = TensorRtLlmOptions()
_TRTLLM_PREFIX = "trtllm_"


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """Everything a replica is started with; checked at construction."""

    host: str = "127.0.0.1"
    """Address the gRPC listener binds."""
    port: int = 0
    """Port of the gRPC listener; 0: any free one."""
    admin_host: str = "127.0.0.1"
    """Address of the metrics and health listener."""
    admin_port: int = 0
    """Port of the metrics and health listener; 0: any free one."""
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    """Certificate of this process; it has to be of the role inference and of `region`."""
    replica: str = "replica"
    """This replica's name, unique in the mesh."""
    region: str = "local"
    """The region this replica stands in."""
    model: str = ""
    """A name of the model catalog; empty: the default model."""
    model_store: Path | None = None
    """The model store's directory; unset: the machine's."""
    engine: str = "openvino"
    """openvino; tensorrt-llm, on a GPU; or fake: deterministic text without a model, for tests of a
    mesh."""
    instances: int = 1
    """Engines of this replica, each with threads, a scheduler, the limits below and an equal part
    of the KV pool of its own: worth it with many cores and many sessions
    (docs/guides/instances.md). Each loads the model again, one after the other, with all that
    max_fixed_rows and prepare_first ask for."""
    threads: int = 1
    """Threads of one engine call; no more than cores / instances pay."""
    max_fixed_rows: int = _ENGINE.max_fixed_rows
    """Calls of up to so many rows run on models compiled for their number of rows: faster, but each
    of 1, 2, 4, 8, 12, 16, 24, 32, ... holds the weights again (135 MB for the default model); 0:
    none. OpenVINO only."""
    prepare_first: bool = False
    """Whether the replica is ready only when these models are, some 20 seconds later; otherwise
    they are compiled while it serves."""
    kv_bytes: int = 0
    """Memory of the KV pool, of all instances together; 0: kv_share of what is free."""
    kv_share: float = _ENGINE.kv_share
    """Share of the memory that is free once the first model is loaded: each instance's part is
    64 MiB at least, 16 GiB at most, and room for one sequence of max_context_tokens. With
    tensorrt-llm: of the GPU's, below 1, without these bounds."""
    num_blocks: int | None = None
    """Blocks of the KV pool, of all instances together; given, it decides instead of kv_bytes."""
    max_context_tokens: int = 0
    """Prompt and reply together; the replica does not start if its KV pool is too small for one
    such session. 0: the model's most, as far as the pool has room."""
    precision: str = "auto"
    """bf16 or f32: arithmetic between the weight products, and the KV; auto: bf16 where the CPU has
    it. Replicas of different precision round differently, so their texts differ."""
    dynamic_quantization: bool = _ENGINE.dynamic_quantization
    """Whether weight products round their inputs to 8 bits: calls of many rows take half the time,
    and the text is a little further from what the weights say in full."""
    exact: bool = True
    """Whether the text is the same bits in every batch; off trades that for speed."""
    trtllm_model_dir: Path | None = None
    """The tensorrt-llm engine's weights, a Hugging Face checkpoint's folder; `model` names the
    vocabulary they belong to."""
    trtllm_tensor_parallel_size: int = _TRTLLM.tensor_parallel_size
    """GPUs that share the model."""
    trtllm_max_batch_size: int = _TRTLLM.max_batch_size
    """Requests of one iteration of the runtime."""
    trtllm_max_num_tokens: int = _TRTLLM.max_num_tokens
    """Tokens of one iteration of the runtime."""
    trtllm_num_candidates: int = _TRTLLM.num_candidates
    """Likeliest ids of a sampled row: the largest top_k that is served."""
    trtllm_truncate_sampling: bool = _TRTLLM.truncate_sampling
    """Whether requests without a top_k are served from the candidates instead of refused."""
    trtllm_logits_bytes: int = _TRTLLM.logits_bytes
    """GPU memory for the logits of requests in flight."""
    trtllm_host_cache_bytes: int = _TRTLLM.host_cache_bytes
    """Host memory for KV blocks that no longer fit the GPU."""
    trtllm_request_timeout_s: float = _TRTLLM.request_timeout_s
    """Time after which a request counts as lost."""
    warm_up_rows: int = 272
    """Engine calls of up to so many rows are made before the replica is ready; 0: none."""
    max_sessions: int = _LIMITS.max_sessions
    """Sessions that hold KV and share engine calls."""
    max_queue: int = _LIMITS.max_queue
    """Sessions that wait to be admitted; further ones are refused with a retry delay."""
    max_batch_tokens: int = _LIMITS.max_batch_tokens
    """Tokens of one engine call, drafts included."""
    prefill_chunk_tokens: int = _LIMITS.prefill_chunk_tokens
    """Prompt tokens of one engine call, over all sessions."""
    max_tick_ms: float = _LIMITS.max_tick_ms
    """Latency budget: a call with decoding sessions takes prompt tokens and drafts only up to this
    predicted duration."""
    prefill_stretch: float = _LIMITS.prefill_stretch
    """How many times longer than without prompt tokens a call with decoding sessions may take."""
    low_tick_ms: float = _LIMITS.low_tick_ms
    """Latency budget of calls with LOW sessions while others keep coming."""
    max_pause_ms: float = _LIMITS.max_pause_ms
    """Time after which a session that is left out of the calls gets a starvation turn."""
    ageing_s: float = _LIMITS.ageing_s
    """Waiting time after which a session ranks with new ones of the next higher class."""
    slo_ttft_low_ms: float = _LIMITS.slo_ttft_low_ms
    """LOW sessions whose first token would come later than this are refused; 0: none are."""
    slo_ttft_medium_ms: float = _LIMITS.slo_ttft_medium_ms
    """The same for MEDIUM ones."""
    slo_ttft_high_ms: float = _LIMITS.slo_ttft_high_ms
    """The same for HIGH ones."""
    max_draft_tokens: int = _LIMITS.max_draft_tokens
    """Drafts of one session in one call."""
    max_lead: int = _LIMITS.max_lead
    """Edge drafts of one session kept ahead of its commits."""
    max_message_bytes: int = 4 << 20
    """Largest frame read from a peer."""
    max_outbox_frames: int = 16_384
    """Frames waiting for one peer, sixteen for each session of a full stream; beyond it the peer's
    sessions end as OVERLOADED."""
    max_stream_sessions: int = 1024
    """Sessions open at once on one stream."""
    drain_s: float = 10.0
    """Time running sessions get to finish when the replica stops."""
    log_level: str = "info"
    """Least severe level that is logged."""

    def __post_init__(self) -> None:
        if not self.replica or not self.region:
            raise ConfigError("replica and region must not be empty")
        for name in ("port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} is {getattr(self, name)}: use 0 to 65535")
        for name in ("max_message_bytes", "max_outbox_frames", "max_stream_sessions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: set it above 0")
        self._check_instances()
        if self.warm_up_rows < 0:
            raise ConfigError(f"warm_up_rows is {self.warm_up_rows}: it cannot be negative")
        if not self.drain_s >= 0:
            raise ConfigError(f"drain_s is {self.drain_s}: it cannot be negative")
        self.limits()
        self.engine_config()

    def _check_instances(self) -> None:
        if self.instances < 1:
            raise ConfigError(f"instances is {self.instances}: give at least 1")
        if self.instances > 1 and self.engine == "tensorrt-llm":
            raise ConfigError(
                "instances of tensorrt-llm would share one GPU's time: set instances to 1 and "
                "raise max_sessions, or start a replica for each GPU"
            )
        if self.num_blocks is not None and self.num_blocks < self.instances:
            raise ConfigError(
                f"num_blocks is {self.num_blocks}: give at least one to each of "
                f"{self.instances} instances"
            )

    def limits(self) -> SchedulerLimits:
        """The bounds of each scheduler. Raises ConfigError."""
        names = {field.name for field in fields(SchedulerLimits)}
        ours = {field.name: getattr(self, field.name) for field in fields(self)}
        return SchedulerLimits(**{name: ours[name] for name in names & ours.keys()})

    def engine_config(self, vocabulary_size: int | None = None) -> EngineConfig:
        """What to make each engine from; a fake engine gets this vocabulary. Raises ConfigError."""
        num_blocks = None if self.num_blocks is None else self.num_blocks // self.instances
        fake = FakeOptions(
            vocabulary_size=vocabulary_size or _FAKE.vocabulary_size,
            num_blocks=num_blocks or _FAKE.num_blocks,
            max_context_tokens=self.max_context_tokens or _FAKE.max_context_tokens,
        )
        return EngineConfig(
            engine=cast(EngineName, self.engine),
            model=self.model,
            model_store=self.model_store,
            threads=self.threads,
            pin_threads=self.instances == 1,
            max_fixed_rows=self.max_fixed_rows,
            prepare_first=self.prepare_first,
            kv_bytes=self.kv_bytes // self.instances,
            kv_share=self.kv_share / self.instances,
            num_blocks=num_blocks,
            max_context_tokens=self.max_context_tokens,
            precision=cast(Precision, self.precision),
            dynamic_quantization=self.dynamic_quantization,
            exact=self.exact,
            fake=fake,
            trtllm=self._trtllm_options(),
        )

    def _trtllm_options(self) -> TensorRtLlmOptions:
        names = [field.name for field in fields(TensorRtLlmOptions)]
        return TensorRtLlmOptions(**{name: getattr(self, _TRTLLM_PREFIX + name) for name in names})
