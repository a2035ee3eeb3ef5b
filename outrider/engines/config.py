"""Configuration of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, get_args

from outrider.bounds import NonNegativeInt, PositiveInt, above, at_least, check_bounds
from outrider.engines.fake import FakeOptions
from outrider.engines.kv_budget import DEFAULT_SHARE, Budget
from outrider.engines.turn.fake import FakeTurnOptions
from outrider.engines.turn.openai_server.config import OpenAiServerOptions
from outrider.engines.turn.tensorrt_llm.config import TensorRtLlmOptions
from outrider.engines.turn.vllm.config import VllmOptions
from outrider.errors import ConfigError
from outrider.models.definitions import WEIGHT_BITS
from outrider.models.definitions import Precision as Precision

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
EngineName: TypeAlias = Literal[
    "openvino", "torch", "fake", "tensorrt-llm", "vllm", "openai-server", "fake-turns"
]
TURN_ENGINES: Final = frozenset({"tensorrt-llm", "vllm", "openai-server", "fake-turns"})
"""Those that write whole replies (outrider.engines.turn.base); the others compute rows."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine, its model, its memory and its arithmetic."""

    engine: EngineName = "openvino"
    model: str = ""
    """A name of the model catalog; "" is the default model."""
    model_store: Path | None = None
    """The model store's directory; None is the machine's."""
    threads: PositiveInt = 1
    """Threads of one call."""
    device: Device = "auto"
    """cpu or cuda; auto: a GPU if there is one. PyTorch only."""
    cuda_graphs: bool = True
    """Whether calls of few rows run as CUDA graphs. PyTorch on a GPU only."""
    pin_threads: bool = True
    """Whether threads may be bound to cores: engines that share a process are all bound to the
    same ones, and wait for each other while the rest idle. OpenVINO only."""
    max_fixed_rows: NonNegativeInt = 32
    """Calls of up to so many rows may run on models compiled for their number of rows, each with
    weights of its own: as many as memory allows (fixed_sizes); 0: all on the one model that takes
    any number. OpenVINO only."""
    max_fixed_bytes: NonNegativeInt = 0
    """Memory that all of these may take together, as far as it is free; 0: footprint.fixed_budget.
    OpenVINO only."""
    prepare_first: bool = False
    """Whether these are compiled before the engine serves, not beside."""
    kv_bytes: NonNegativeInt = 0
    """Memory of the KV pool, in whole blocks, touched only as it fills; 0: kv_share."""
    kv_share: Annotated[float, above(0, 1)] = DEFAULT_SHARE
    """Share of the memory that is free once the model is loaded, with bounds (memory.budget); of
    the GPU's, without bounds, for tensorrt-llm."""
    vocabulary_size: NonNegativeInt = 0
    """Ids of the vocabulary that is served: a model may score more, which are never chosen. 0: all
    that it scores. TensorRT-LLM only."""
    num_blocks: Annotated[int | None, at_least(1)] = None
    """Blocks of the KV pool; given, it decides instead of kv_bytes."""
    max_context_tokens: NonNegativeInt = 0
    """Most tokens of prompt and reply together; the pool must have room for them. 0: the model's
    limit, as far as the pool has room."""
    precision: Precision = "auto"
    """Arithmetic of attention and of everything between the weight products, and of the KV; auto:
    bf16 on a CPU that has instructions for it and no AMX, else f32 (decision 0002). With
    PyTorch also the weights', and auto is bf16 on a GPU, else f32. OpenVINO and PyTorch only."""
    dynamic_quantization: bool = True
    """Whether a weight product rounds its inputs to 8 bits, in groups that share a scale. Calls of
    many rows then take half the time, and 4 % of likeliest tokens become another one (otherwise 2
    %; `python -m bench.fidelity`). CPUs with AVX2 only never round. OpenVINO only."""
    weight_bits: int | None = None
    """Bits of a weight: 8, in groups that share a scale, or 4; None: 8 with OpenVINO, those of
    `precision` with PyTorch, which has no 4. With 4, a call of few rows takes six tenths of the
    time and is less true to the file: for draft models, whose text is verified (decision 0008).
    OpenVINO's folders are served as they are. OpenVINO and PyTorch only."""
    exact: bool = True
    """Whether a row is the same bits in every batch and chunking (EngineInfo.exact). PyTorch makes
    products with the vendor's kernels if not."""
    fake: FakeOptions = field(default_factory=FakeOptions)
    """The fake engine's shape; num_blocks above is the other engines'."""
    trtllm: TensorRtLlmOptions = field(default_factory=TensorRtLlmOptions)
    """The TensorRT-LLM engine's own settings; of those above it uses the pool's,
    vocabulary_size and max_context_tokens."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    """The vLLM engine's own settings; of those above it uses kv_bytes or num_blocks,
    vocabulary_size and max_context_tokens."""
    fake_turns: FakeTurnOptions = field(default_factory=FakeTurnOptions)
    """The fake turn engine's shape."""
    server: OpenAiServerOptions = field(default_factory=OpenAiServerOptions)
    """The server of the engine openai-server."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.engine not in get_args(EngineName):
            raise ConfigError(
                f"there is no engine {self.engine!r}; use {', '.join(get_args(EngineName))}"
            )
        if self.device not in get_args(Device):
            raise ConfigError(
                f"there is no device {self.device!r}; use {', '.join(get_args(Device))}"
            )
        if self.precision not in get_args(Precision):
            raise ConfigError(
                f"there is no precision {self.precision!r}; use {', '.join(get_args(Precision))}"
            )
        if self.weight_bits not in (None, *WEIGHT_BITS):
            raise ConfigError(f"weight_bits is {self.weight_bits}; use 4 or 8")
        if self.engine == "torch" and self.weight_bits == 4:
            raise ConfigError(
                "weight_bits is 4, and the engine torch has 8 or the bits of its precision; set it "
                "to 8, leave it out, or use openvino"
            )

    def kv_budget(self) -> Budget:
        """Limits of the KV pool's size."""
        return Budget(self.num_blocks, self.kv_bytes, self.kv_share, self.max_context_tokens)
