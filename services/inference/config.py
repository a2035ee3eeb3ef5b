"""The inference service's settings."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from outrider.bounds import (
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveInt,
    above,
    check_bounds,
)
from outrider.config import check_message_bytes
from outrider.engines.config import Device, EngineConfig, EngineName
from outrider.engines.fake import FakeOptions
from outrider.engines.turn.fake import FakeTurnOptions
from outrider.engines.turn.openai_server.config import OpenAiServerOptions
from outrider.engines.turn.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.turn.vllm.config import VllmOptions
from outrider.errors import ConfigError
from outrider.mirrors.config import MirrorConfig
from outrider.models.definitions import ModelSpec
from outrider.speculation.learnt import LearntConfig
from outrider.static_prefixes import StaticPrefixConfig, check_prefixes
from outrider.telemetry.config import AdminConfig
from outrider.tls.config import TlsConfig
from services.inference.embedding_limits import EmbeddingLimits
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.scheduler.limits import SchedulerLimits

_FAKE = FakeOptions()
_ENGINE = EngineConfig()


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/outrider/inference, or ~/.local/state/outrider/inference."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "outrider" / "inference"


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """Everything a replica is started with; checked at construction."""

    host: str = "127.0.0.1"
    """Address the gRPC listener binds."""
    port: Port = 7300
    """Port of the gRPC listener; 0: any free one."""
    admin: AdminConfig = dataclasses.field(default_factory=AdminConfig)
    """Address of /metrics, /health and /ready."""
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
    mirrors: MirrorConfig = dataclasses.field(default_factory=MirrorConfig)
    """Mirrors to fetch the model from, by its digest, if it is not in the store."""
    engine: str = "openvino"
    """openvino; torch, on a GPU or a CPU; tensorrt-llm, on a GPU; vllm, on either; openai-server: a
    server that schedules and samples by itself; or fake, and fake-turns: deterministic text without
    a model, for tests of a mesh."""
    fake_seed: int = 0
    """Weights of the fake engine: replicas of different seeds are different models behind one
    name."""
    fake_crash_id: int = -1
    """An engine call with this token id ends the process, where the engine is the fake one; with
    fake-turns, a prompt with it loses the engine: a request that crashes replicas, to see what
    becomes of it. Below 0: none does."""
    fake_call_ms: NonNegativeFloat = 0.0
    """How long each call of the fake engine waits, in addition to computing."""
    device: str = "auto"
    """cpu or cuda, where the torch engine computes; auto: a GPU if there is one."""
    threads: int = 1
    """Threads of one engine call; more than cores do not pay. For embedding models: cores, each of
    which computes another call, or all of them together a single text."""
    max_fixed_rows: int | None = None
    """Calls of up to this many rows may run on models compiled for their number of rows: faster,
    but each of 1, 2, 4, 6, 8, 12, 16, ... holds the weights again (200 MiB for the default
    model). The model's size and the free memory limit their number (docs/guides/models.md). 0:
    none; unset: the model definition's value, else 32. OpenVINO only."""
    max_fixed_bytes: NonNegativeInt = 0
    """Memory that these may take, as far as it is free beside the KV pool; 0: 2 GiB, or a twentieth
    of free memory if that is more."""
    prepare_first: bool = False
    """Whether the replica is ready only when these models are, some 20 seconds later; otherwise
    they are compiled while it serves."""
    kv_bytes: int = 0
    """Memory of the KV pool; 0: kv_share of free memory."""
    kv_share: float = _ENGINE.kv_share
    """Share of the memory that is free once the model is loaded: 64 MiB at least, 16 GiB at most,
    and room for one sequence of max_context_tokens. With tensorrt-llm: of the GPU's, below 1,
    without these bounds."""
    num_blocks: int | None = None
    """Blocks of the KV pool; given, it decides instead of kv_bytes."""
    max_context_tokens: int = 0
    """Most tokens of prompt and reply together; the replica does not start if its KV pool is too
    small for one such session. 0: the model definition's value, else the model's limit, as far as
    the pool has room."""
    precision: str | None = None
    """bf16 or f32: arithmetic between the weight products, and the KV. auto: bf16 if the CPU has it
    and no AMX (decision 0002), else f32; always f32 for embedding models. unset: the model
    definition's value, else auto. Replicas of different precision round differently, so their texts
    differ, and they do not take over each other's sessions."""
    dynamic_quantization: bool | None = None
    """Whether weight products round their inputs to 8 bits: calls of many rows take half the time,
    and the text is slightly less true to the weights. Unset: the model definition's value, else
    on."""
    weight_bits: int | None = None
    """8, in groups that share a scale, or 4, faster and less true to the model: bits of a weight.
    Unset: the model definition's value, else 8 with openvino, and with torch, which has no 4, those
    of `precision`."""
    exact: bool = True
    """Whether the text is the same bits in every batch; off trades that for speed."""
    trtllm: TensorRtLlmOptions = dataclasses.field(default_factory=TensorRtLlmOptions)
    """The tensorrt-llm engine; its checkpoint has to have the vocabulary of `model`."""
    vllm: VllmOptions = dataclasses.field(default_factory=VllmOptions)
    """The vllm engine; its checkpoint has to have the vocabulary of `model`."""
    server: OpenAiServerOptions = dataclasses.field(default_factory=OpenAiServerOptions)
    """The server of the engine openai-server; its model has to have the vocabulary of `model`."""
    fake_token_ms: NonNegativeFloat = 0.0
    """Time between two tokens of a reply of the engine fake-turns."""
    warm_up_rows: NonNegativeInt = 16
    """Engine calls of up to so many rows are made before the replica is ready; 0: none. Kernels for
    a number of rows are built in its first call, in some 20 ms, whatever the number: little beside
    a call of more rows, and those of up to 32 get models of their own soon after."""
    scheduler: SchedulerLimits = dataclasses.field(default_factory=SchedulerLimits)
    """Bounds of the scheduler."""
    embedding: EmbeddingLimits = dataclasses.field(default_factory=EmbeddingLimits)
    """Limits of a replica with an embedding model."""
    max_message_bytes: int = 4 << 20
    """Largest message read from a peer, which is as long as its longest open at least; not below
    65,536, as small frames come several in one."""
    max_outbox_frames: PositiveInt = 16_384
    """Frames waiting for one peer, sixteen for each session of a full stream; beyond it the peer's
    sessions end as OVERLOADED."""
    max_stream_sessions: PositiveInt = 1024
    """Sessions open at once on one stream."""
    drain_s: NonNegativeFloat = 10.0
    """Time running sessions get to finish when the replica stops."""
    state_dir: Path = dataclasses.field(default_factory=default_state_dir)
    """Keeps statistics of sessions, learnt/, and records of the engine's requests, calls/: after a
    crash the next process reports them to the routers."""
    learnt: LearntConfig = dataclasses.field(default_factory=LearntConfig)
    """How statistics of sessions are kept for drafts after the next start."""
    prefix_store: PrefixStoreConfig = dataclasses.field(default_factory=PrefixStoreConfig)
    """A Redis that keeps KV of prompts' beginnings over restarts, and for other replicas."""
    kv_peers: KvPeersConfig = dataclasses.field(default_factory=KvPeersConfig)
    """KV that replicas of one model identity give each other."""
    inexact_kv: bool = False
    """Whether KV of sessions whose tenant allows inexact text (`allow_inexact` in
    `[[router.tenants]]`) goes to the prefix store, and comes from there and from other replicas, in
    8 bits: half the bytes or less. Replies behind such KV are labelled `inexact`."""
    prefixes: tuple[StaticPrefixConfig, ...] = ()
    """Common beginnings of chats: computed, or loaded from the prefix store, before the replica is
    ready, and kept."""
    prefix_share: Annotated[float, above(0, 0.99)] = 0.25
    """Share of the KV pool that `prefixes` may take."""
    log_level: str = "info"
    """Least severe level that is logged."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.replica or not self.region:
            raise ConfigError("replica and region must not be empty")
        check_message_bytes(self.max_message_bytes)
        check_prefixes(self.prefixes)
        self.engine_config()

    def engine_config(
        self, vocabulary_size: int | None = None, spec: ModelSpec | None = None
    ) -> EngineConfig:
        """The engine's configuration, for a vocabulary of this size: these settings, and the model
        definition's for those that are unset. Raises ConfigError."""
        defined = spec.engine_settings() if spec is not None else {}
        own: dict[str, Any] = {
            "max_fixed_rows": self.max_fixed_rows,
            "max_context_tokens": self.max_context_tokens or None,
            "precision": self.precision,
            "dynamic_quantization": self.dynamic_quantization,
            "weight_bits": self.weight_bits,
        }
        chosen = defined | {key: value for key, value in own.items() if value is not None}
        fake = FakeOptions(
            vocabulary_size=vocabulary_size or _FAKE.vocabulary_size,
            num_blocks=self.num_blocks or _FAKE.num_blocks,
            max_context_tokens=chosen.get("max_context_tokens", _FAKE.max_context_tokens),
            seed=self.fake_seed,
            crash_id=self.fake_crash_id,
            call_ms=self.fake_call_ms,
        )
        return EngineConfig(
            engine=cast(EngineName, self.engine),
            model=self.model,
            model_store=self.model_store,
            device=cast(Device, self.device),
            threads=self.threads,
            prepare_first=self.prepare_first,
            max_fixed_bytes=self.max_fixed_bytes,
            vocabulary_size=vocabulary_size or 0,
            kv_bytes=self.kv_bytes,
            kv_share=self.kv_share,
            num_blocks=self.num_blocks,
            exact=self.exact,
            fake=fake,
            trtllm=self.trtllm,
            vllm=self.vllm,
            server=self.server,
            fake_turns=FakeTurnOptions(
                seed=self.fake_seed,
                token_ms=self.fake_token_ms,
                crash_id=self.fake_crash_id,
                max_context_tokens=chosen.get("max_context_tokens", 2048),
            ),
            **chosen,
        )
