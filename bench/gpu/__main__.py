"""What a GPU does with the engine `torch`: whether it keeps the contract, to the bit, and what a
step costs, in one run of some minutes.

    python -m bench.gpu --out DIR [--budget-s 420]

Needs PyTorch with Triton, numpy and zstandard, and nothing from a network: weights are random,
of real shapes, and made on the device. Each stage writes DIR/STAGE.json when it ends; a run into
the same folder goes on behind the stages that are there. The last line printed is all of it in
short. `--device cpu` tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.gpu import checks
from bench.gpu.random_weights import MODELS, RandomWeights
from bench.gpu.serving import serve
from outrider.engines.base import SequenceSlice
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.fingerprint import fingerprint_of
from outrider.engines.torch.engine import TorchEngine, device_of

MODES = {
    "exact, graphs": (True, True),
    "exact, one by one": (True, False),
    "library, graphs": (False, True),
    "library, one by one": (False, False),
}
"""Whose kernels, and whether they start as CUDA graphs."""
ROWS = (1, 8, 64, 256, 512)
CONTEXTS = (128, 2048, 8192)
SESSIONS = (1, 8, 32, 128)
_REPEATS = 20
_CHILD = "from bench.gpu.__main__ import print_digest; print_digest()"

Figures = dict[str, Any]


class Bench:
    """The stages of one run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.device = device_of(arguments.device)
        self.model: str = arguments.model or ("tiny" if self.device.type == "cpu" else "8B")
        self.small = "tiny" if self.model == "tiny" else "135M"
        self.precision: Precision = "f32" if self.device.type == "cpu" else arguments.precision
        self._until = time.monotonic() + arguments.budget_s

    def run(self) -> Figures:
        """All stages for which there is time. One that fails says why, and others go on."""
        found: Figures = {}
        for name, stage in STAGES.items():
            file = self.out / f"{name}.json"
            if file.exists():
                found[name] = json.loads(file.read_text())
                continue
            if self.left_s <= 0:
                found[name] = {"left out": "no time was left"}
                continue
            begin = time.monotonic()
            try:
                figures = stage(self)
            except Exception as error:  # a fault of one stage hides nothing of the others
                traceback.print_exc()
                figures = {"failed": f"{type(error).__name__}: {error}"[:500]}
            figures["took_s"] = round(time.monotonic() - begin, 1)
            file.write_text(json.dumps(figures, indent=1))
            found[name] = figures
            print(f"{name}: {json.dumps(figures)}", file=sys.stderr)
        return found

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return float(self._until - time.monotonic())

    @contextmanager
    def engine(
        self, model: str, num_blocks: int, *, graphs: bool = True, exact: bool = True
    ) -> Iterator[TorchEngine]:
        """An engine with random weights, closed at the end."""
        config = EngineConfig(
            engine="torch",
            device="cpu" if self.device.type == "cpu" else "cuda",
            precision=self.precision,
            num_blocks=num_blocks,
            cuda_graphs=graphs,
            exact=exact,
        )
        weights = RandomWeights(MODELS[model], self.device)
        engine = TorchEngine(weights, config)
        try:
            yield engine
        finally:
            engine.close()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


def machine(bench: Bench) -> Figures:
    """What computes here, and how fast its memory is."""
    figures: Figures = {"device": "cpu", "torch": torch.__version__, "model": bench.model}
    if bench.device.type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(bench.device)
        figures |= {"device": properties.name, "triton": triton.__version__}
        figures["memory_bytes"] = properties.total_memory
    num_bytes = 1 << (30 if bench.device.type == "cuda" else 26)
    source = torch.ones(num_bytes // 4, device=bench.device)
    target = torch.empty_like(source)
    took = [_seconds(bench, lambda: target.copy_(source)) for _ in range(10)]
    figures["memory_bytes_per_s"] = 2 * num_bytes / min(took)
    return figures


def build(bench: Bench) -> Figures:
    """The small model's engine: kernels are compiled."""
    with bench.engine(bench.small, 64) as engine:
        return {"fingerprint": engine.info.fingerprint.hex(), "precision": engine.info.precision}


def contract(bench: Bench) -> Figures:
    """Every check, with CUDA graphs where there are any."""
    results = {}
    with bench.engine(bench.small, 64) as engine:
        for name, check in checks.CONTRACT.items():
            try:
                check(engine)
                results[name] = "passed"
            except AssertionError as error:
                results[name] = f"failed: {error}"[:300]
                _close_all(engine)
    return {"checks": results, "contract": _verdict(results)}


def bits(bench: Bench) -> Figures:
    """Graphs against kernels one by one, and a process against another."""
    digests = {}
    for graphs in (True, False):
        with bench.engine(bench.small, 64, graphs=graphs) as engine:
            name = "graphs" if graphs else "one by one"
            digests[name] = _digest(engine)
    command = [sys.executable, "-c", _CHILD, bench.device.type, bench.small, bench.precision]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    digests["another process"] = child.stdout.strip() or child.stderr.strip()[-300:]
    return {"digests": digests, "bits_equal": len(set(digests.values())) == 1}


def print_digest() -> None:
    """In the other process."""
    device, model, precision = sys.argv[1:]
    flags = argparse.Namespace(
        out=Path(), device=device, model=model, precision=precision, budget_s=60.0
    )
    with Bench(flags).engine(model, 64) as engine:
        print(_digest(engine))


def steps(bench: Bench) -> Figures:
    """Milliseconds of a step by rows, one to a session, and context, in four modes; and the bytes
    of weights that a step reads."""
    sizes = MODELS[bench.model]
    contexts = [it for it in CONTEXTS if it < sizes.context - 64]
    most_rows = {it: _most_rows(bench, it) for it in contexts}
    per_block = 32
    num_blocks = max(
        min(rows, most_rows[it]) * (-(-(it + 1) // per_block)) for it in contexts for rows in ROWS
    )
    figures: Figures = {}
    for mode, (is_exact, graphs) in MODES.items():
        if graphs and bench.device.type == "cpu":
            continue
        with bench.engine(bench.model, num_blocks, graphs=graphs, exact=is_exact) as engine:
            for number in range(max(ROWS)):
                engine.open(number, np.zeros(1, np.int32))
            for context in contexts:
                for rows in ROWS:
                    if rows > most_rows[context] or bench.left_s <= 0:
                        continue
                    ms = _step_ms(bench, engine, rows, context)
                    figures.setdefault(f"{rows} x {context}", {})[mode] = round(ms, 3)
    return {"ms": figures, "weight_bytes": sizes.num_weights * _value_bytes(bench)}


def tokens(bench: Bench) -> Figures:
    """Tokens a second of whole replies through the scheduler; with drafts, all of which are right,
    and the texts of both compared."""
    figures: Figures = {}
    for count in SESSIONS if bench.model != "tiny" else SESSIONS[:2]:
        if bench.left_s <= 0:
            break
        with bench.engine(bench.model, count * 7 + 1) as engine:
            serve(engine, count, [])  # the first call of each size is slow
            plain = serve(engine, count, [])
            serve(engine, count, plain.replies)
            drafted = serve(engine, count, plain.replies)
        figures[str(count)] = {
            "plain": round(plain.tokens_per_s, 1),
            "drafts": round(drafted.tokens_per_s, 1),
            "texts_equal": plain.replies == drafted.replies,
        }
    return {"tokens_per_s": figures}


STAGES: dict[str, Callable[[Bench], Figures]] = {
    "machine": machine,
    "build": build,
    "contract": contract,
    "bits": bits,
    "steps": steps,
    "tokens": tokens,
}


def summary(found: Figures) -> Figures:
    """One line for all of it."""
    step_ms = found["steps"].get("ms", {})
    told: Figures = {
        "device": found["machine"].get("device"),
        "model": found["machine"].get("model"),
        "contract": found["contract"].get("contract", "failed"),
        "bits_equal": found["bits"].get("bits_equal", False),
        "step_ms": step_ms,
        "tokens_per_s": found["tokens"].get("tokens_per_s", {}),
    }
    prices = [
        one["exact, one by one"] / one["library, one by one"]
        for one in step_ms.values()
        if {"exact, one by one", "library, one by one"} <= one.keys()
    ]
    if prices:
        told["exact_over_library"] = round(median(prices), 3)
    if first := next(iter(step_ms.values()), None):
        floor_ms = found["steps"]["weight_bytes"] / found["machine"]["memory_bytes_per_s"] * 1e3
        told["share_of_memory_speed"] = round(floor_ms / min(first.values()), 3)
    return told


def _verdict(results: dict[str, str]) -> str:
    return "passed" if set(results.values()) == {"passed"} else "failed"


def _close_all(engine: TorchEngine) -> None:
    for number in range(16):
        engine.close_sequence(number)


def _digest(engine: TorchEngine) -> str:
    ids = checks.digest_ids(engine)
    return fingerprint_of(checks.rows_of(engine, ids, 64)).hex()


def _value_bytes(bench: Bench) -> int:
    return 4 if bench.precision == "f32" else 2


def _most_rows(bench: Bench, context: int) -> int:
    """Sessions of this context whose KV takes at most a third of the memory that is free."""
    sizes = MODELS[bench.model]
    token_bytes = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * _value_bytes(bench)
    free = torch.cuda.mem_get_info()[0] if bench.device.type == "cuda" else 1 << 30
    return int(free // 3 // (token_bytes * (context + 33)))


def _step_ms(bench: Bench, engine: TorchEngine, rows: int, context: int) -> float:
    """Median of a step of so many sessions. What the KV holds does not matter to its time."""
    per = -(-(context + 1) // engine.info.block_tokens)
    tokens = np.zeros(1, np.int32)
    parts = [
        SequenceSlice(n, tokens, context, np.arange(n * per, (n + 1) * per, dtype=np.int32), 1)
        for n in range(rows)
    ]
    engine.step(parts)
    repeats = _REPEATS if bench.device.type == "cuda" else 3
    return median(_seconds(bench, lambda: engine.step(parts)) for _ in range(repeats)) * 1e3


def _seconds(bench: Bench, work: Callable[[], object]) -> float:
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    begin = time.perf_counter()
    work()
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    return time.perf_counter() - begin


def main() -> int:
    flags = argparse.ArgumentParser("bench.gpu", description=__doc__)
    flags.add_argument("--out", type=Path, required=True, help="folder of the stages' figures")
    flags.add_argument("--budget-s", type=float, default=420.0, help="begin no stage after so long")
    flags.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    flags.add_argument("--model", choices=tuple(MODELS), help="8B on a GPU, tiny on a CPU")
    flags.add_argument("--precision", default="bf16", choices=("bf16", "f32"), help="on a GPU")
    arguments = flags.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    told = summary(Bench(arguments).run())
    print(json.dumps(told))
    return 0 if told["contract"] == "passed" and told["bits_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
