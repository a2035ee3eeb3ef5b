"""NVIDIA Dynamo's frontend, its KV-aware router and its CPU mocker.

One dependency of the `ai-dynamo` package is left out: `aisimulate`, whose entry in the index only
fetches a wheel from the vendor's own server; Dynamo imports it for its predicted GPU timings, which
nothing here uses.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import numpy as np

from bench.harness.processes import child
from bench.peers.installing import HOME, from_index
from outrider.children import PipedProcess
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary

_VERSION: Final = "1.6.1"
_DEPENDENCIES: Final = (
    *("aiohttp>=3.14.3,<4", "certifi", "kubernetes>=32.0.1,<33", "msgspec>=0.19"),
    *("prometheus-client>=0.23.1,<1", "pydantic>=2.10.6,<=2.13.5", "pyzmq>=26", "redis>=6.2,<9"),
    *("tqdm>=4", "transformers>=4.56", "uvloop>=0.21", "zstandard>=0.23,<1"),
)
"""What the two packages ask for, but for `aisimulate`."""
PEER: Final = from_index(
    *("dynamo", _VERSION, f"ai-dynamo=={_VERSION}", f"ai-dynamo-runtime=={_VERSION}"),
    program="lib/python*/site-packages/dynamo/mocker/main.py",
    dependencies=_DEPENDENCIES,
    minutes=3.0,
)
_PYTHON: Final = HOME / "dynamo" / "bin" / "python"
_PLANES: Final = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
_ENDS: Final = {"bos_token_id": 1, "eos_token_id": 2}
_MODEL_FILES: Final[dict[str, dict[str, object]]] = {
    "config": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
        **_ENDS,
    },
    "tokenizer_config": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    },
    "generation_config": {**_ENDS},
}


@contextlib.asynccontextmanager
async def mocked(
    port: int,
    model: str,
    mode: str,
    *,
    num_workers: int,
    num_blocks: int,
    block_tokens: int,
    fixed_ms: float,
    row_ms: float,
) -> AsyncIterator[tuple[PipedProcess, ...]]:
    """Its frontend at `port` in front of mockers, by the router's `mode`: their processes, which do
    not serve yet. A call of theirs takes `fixed_ms`, and `row_ms` for each row."""
    with tempfile.TemporaryDirectory(prefix="outrider-dynamo-") as home:
        folder = Path(home)
        _write_model(folder / "model")
        _write_times(folder / "times.npz", fixed_ms, row_ms)
        workers = (
            *("-m", "dynamo.mocker", "--model-path", str(folder / "model"), "--model-name", model),
            *("--num-workers", str(num_workers), "--block-size", str(block_tokens)),
            *("--num-gpu-blocks-override", str(num_blocks), "--max-num-seqs", "16"),
            *("--max-num-batched-tokens", "256"),
            *("--planner-profile-data", str(folder / "times.npz")),
        )
        front = (
            *("-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)),
            *("--router-mode", mode, "--kv-cache-block-size", str(block_tokens)),
            *("--router-min-initial-workers", str(num_workers)),
        )
        environ = {"DYN_FILE_KV": str(folder / "store"), "HF_HUB_OFFLINE": "1"}
        async with (
            child(str(_PYTHON), *workers, *_PLANES, environ=environ, silent=True) as one,
            child(str(_PYTHON), *front, *_PLANES, environ=environ, silent=True) as other,
        ):
            yield one, other


def _write_model(folder: Path) -> None:
    """What Dynamo wants to know of a model: here the default one's tokenizer. Nothing is
    tokenized, but its frontend turns the mockers' random ids into text."""
    folder.mkdir()
    load_vocabulary(DEFAULT_MODEL, ModelStore(default_root())).save(folder)
    for name, content in _MODEL_FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _write_times(path: Path, fixed_ms: float, row_ms: float) -> None:
    """The mocker's timing tables. Its time of decoding goes by tokens in the cache and tokens per
    sequence; their quotient is the sequences, which have two rows each here as with us."""
    tokens = np.arange(0, 4097, 16)
    cached, each = np.linspace(0, 20480, 65), np.linspace(1, 2048, 65)
    sequences = np.clip(cached[:, None] / each[None, :], 1, 16)
    np.savez(
        path,
        prefill_isl=tokens.astype(np.float64),
        prefill_ttft_ms=fixed_ms + row_ms * tokens,
        decode_active_kv_tokens=cached,
        decode_context_length=each,
        decode_itl=fixed_ms + 2 * row_ms * sequences,
    )
