"""What a GPU does with the engine `torch`: whether it keeps the contract, to the bit, and what a
step costs, in one run of some minutes.

    python -m bench.gpu --out DIR [--budget-s 420]

Needs PyTorch with Triton, numpy and zstandard, and nothing from a network: weights are random,
of real shapes, and made on the device; `--truncated FILE` (bench.gpu.truncated_model) adds the
first layers of a real model. Each stage writes DIR/STAGE.json when it ends; a run into the same
folder goes on behind the stages that are there. The last line printed is all of it in short.
`--device cpu` tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.gpu import checks
from bench.gpu.random_weights import MODELS, RandomWeights
from bench.gpu.serving import serve
from bench.gpu.truncated_model import TruncatedModel
from outrider.engines.base import Ids, SequenceSlice
from outrider.engines.config import EngineConfig, Precision
from outrider.engines.fingerprint import fingerprint_of
from outrider.engines.torch.call_plan import BLOCK_TOKENS
from outrider.engines.torch.decoder import Weights
from outrider.engines.torch.engine import TorchEngine, device_of
from outrider.engines.torch.matrices import GROUP_VALUES


class Mode(NamedTuple):
    """A way to compute steps."""

    exact: bool
    """Whose products: the engine's, or the vendor's."""
    graphs: bool
    """Whether kernels start as CUDA graphs; else one by one."""
    weight_bits: int | None = None


MODES = {
    "exact, graphs": Mode(True, True),
    "exact, one by one": Mode(True, False),
    "library, graphs": Mode(False, True),
    "library, one by one": Mode(False, False),
    "exact int8, graphs": Mode(True, True, 8),
    "exact int8, one by one": Mode(True, False, 8),
}
_BITS = {"": None, ", int8": 8}
"""Suffixes of names, and bits of a weight."""
ROWS = (1, 8, 64, 256, 512)
CONTEXTS = (128, 2048, 8192)
SESSIONS = (1, 8, 32, 128)
_REPEATS = 20
_PREFILL_ROWS = 512
_CHILD = "from bench.gpu.__main__ import print_digest; print_digest()"

Figures = dict[str, Any]


class Bench:
    """The stages of one run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.device = device_of(arguments.device)
        self.model: str = arguments.model or ("tiny" if self.device.type == "cpu" else "8B")
        self.small = "tiny" if self.model == "tiny" else "135M"
        self.truncated: Path | None = arguments.truncated
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
        self, model: str | Weights, num_blocks: int, mode: Mode = MODES["exact, graphs"]
    ) -> Iterator[TorchEngine]:
        """An engine, of a name with random weights, closed at the end."""
        config = EngineConfig(
            engine="torch",
            device="cpu" if self.device.type == "cpu" else "cuda",
            precision=self.precision,
            num_blocks=num_blocks,
            cuda_graphs=mode.graphs,
            exact=mode.exact,
            weight_bits=mode.weight_bits,
        )
        weights = RandomWeights(MODELS[model], self.device) if isinstance(model, str) else model
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
    """Every check, with CUDA graphs where there are any: of the small model, with weights of 8 bits
    too, and of one with experts."""
    results = {}
    for model in (bench.small, "experts"):
        for suffix, bits in _BITS.items():
            with bench.engine(model, 64, Mode(True, True, bits)) as engine:
                for check, verdict in _checked(engine):
                    results[f"{check}, {model}{suffix}"] = verdict
    return {"checks": results, "contract": _verdict(results)}


def _checked(engine: TorchEngine) -> Iterator[tuple[str, str]]:
    for name, check in checks.CONTRACT.items():
        try:
            check(engine)
            yield name, "passed"
        except AssertionError as error:
            yield name, f"failed: {error}"[:300]
            _close_all(engine)


def bits(bench: Bench) -> Figures:
    """Graphs against kernels one by one, and a process against another."""
    digests: dict[str, dict[str, str]] = {}
    for suffix, weight_bits in _BITS.items():
        own = digests[f"{bench.small}{suffix}"] = {}
        for graphs in (True, False):
            with bench.engine(bench.small, 64, Mode(True, graphs, weight_bits)) as engine:
                own["graphs" if graphs else "one by one"] = _digest(engine)
        command = [sys.executable, "-c", _CHILD, bench.device.type, bench.small, bench.precision]
        child = subprocess.run(
            [*command, str(weight_bits or "")], capture_output=True, text=True, timeout=300
        )
        own["another process"] = child.stdout.strip() or child.stderr.strip()[-300:]
    return {
        "digests": digests,
        "bits_equal": all(len(set(it.values())) == 1 for it in digests.values()),
    }


def print_digest() -> None:
    """In the other process."""
    device, model, precision, weight_bits = sys.argv[1:]
    flags = argparse.Namespace(
        out=Path(), device=device, model=model, precision=precision, budget_s=60.0, truncated=None
    )
    mode = Mode(True, True, int(weight_bits) if weight_bits else None)
    with Bench(flags).engine(model, 64, mode) as engine:
        print(_digest(engine))


def values(bench: Bench) -> Figures:
    """The first layers of a real model on this device against the same on the CPU in f32: root mean
    square of the logits' differences over that of the logits, and rows with the same likeliest
    token."""
    if bench.truncated is None:
        return {"left out": "no --truncated FILE"}
    model = TruncatedModel(bench.truncated)
    config = EngineConfig(engine="torch", device="cpu", precision="f32", num_blocks=16)
    with closing(TorchEngine(model, config)) as plain:
        ids = checks.ids_of(plain, min(200, plain.info.max_context_tokens))
        expected = checks.rows_of(plain, ids, 64)
    figures: Figures = {}
    for suffix, weight_bits in _BITS.items():
        with bench.engine(model, 16, Mode(True, True, weight_bits)) as engine:
            rows = checks.rows_of(engine, ids, 64)
        apart = np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2))
        same = np.mean(rows.argmax(1) == expected.argmax(1))
        name = f"{bench.precision}{suffix}"
        figures[name] = {"apart": float(f"{apart:.3g}"), "same argmax": round(float(same), 4)}
    return {"layers": len(model.shape.layers), "values": figures}


def steps(name: str) -> Callable[[Bench], Figures]:
    """The stage of one mode: milliseconds of a step by rows, one to a session, and context."""

    def stage(bench: Bench) -> Figures:
        mode = MODES[name]
        if mode.graphs and bench.device.type == "cpu":
            return {"left out": "a CPU has no CUDA graphs"}
        sizes = MODELS[bench.model]
        contexts = [it for it in CONTEXTS if it < sizes.context - 64]
        most_rows = {it: _most_rows(bench, it) for it in contexts}
        num_blocks = max(min(max(ROWS), most_rows[it]) * _blocks(it + 1) for it in contexts)
        figures: Figures = {}
        with bench.engine(bench.model, num_blocks + _blocks(max(contexts)), mode) as engine:
            held = _prefilled(engine, max(contexts), num_blocks)
            for number in range(max(ROWS)):
                engine.open(number, np.zeros(1, np.int32))
            for context in contexts:
                for rows in ROWS:
                    if rows > most_rows[context] or bench.left_s <= 0:
                        continue
                    ms = _step_ms(bench, engine, rows, context, held)
                    figures[f"{rows} x {context}"] = round(ms, 3)
        return {"ms": figures}

    return stage


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
    "values": values,
    **{f"steps {name}": steps(name) for name in MODES},
    "tokens": tokens,
}


def summary(bench: Bench, found: Figures) -> Figures:
    """One line for all of it."""
    step_ms: Figures = {}
    for mode in MODES:
        for shape, ms in found[f"steps {mode}"].get("ms", {}).items():
            step_ms.setdefault(shape, {})[mode] = ms
    told: Figures = {
        "device": found["machine"].get("device"),
        "model": found["machine"].get("model"),
        "contract": found["contract"].get("contract", "failed"),
        "bits_equal": found["bits"].get("bits_equal", False),
        "values": found["values"].get("values", {}),
        "step_ms": step_ms,
        "tokens_per_s": found["tokens"].get("tokens_per_s", {}),
    }
    for how in ("graphs", "one by one"):
        exact, library = f"exact, {how}", f"library, {how}"
        prices = [
            ms[exact] / ms[library] for ms in step_ms.values() if {exact, library} <= ms.keys()
        ]
        if prices:
            told.setdefault("exact_over_library", {})[how] = round(median(prices), 3)
    speed = found["machine"].get("memory_bytes_per_s")
    if speed and (first := next(iter(step_ms.values()), None)):
        # The step of fewest rows reads the weights, and next to nothing else.
        told["share_of_memory_speed"] = {
            mode: round(_weight_bytes(bench, MODES[mode]) / speed * 1e3 / ms, 3)
            for mode, ms in first.items()
        }
    return told


def _weight_bytes(bench: Bench, mode: Mode) -> float:
    """That a step reads."""
    each = 1 + 2 / GROUP_VALUES if mode.weight_bits == 8 else _value_bytes(bench)
    return MODELS[bench.model].num_weights * each


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


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def _prefilled(engine: TorchEngine, num_tokens: int, first: int) -> Ids:
    """Blocks from number `first` on with the keys and values of a random prompt."""
    ids, blocks = checks.ids_of(engine, num_tokens, 5), checks.table(engine, num_tokens, first)
    engine.open(0, ids[:1])
    for past in range(0, num_tokens, _PREFILL_ROWS):
        tokens = ids[past : past + _PREFILL_ROWS]
        engine.step([SequenceSlice(0, tokens, past, blocks, 0)])
    engine.close_sequence(0)
    return blocks


def _step_ms(bench: Bench, engine: TorchEngine, rows: int, context: int, held: Ids) -> float:
    """Median of a step of so many sessions, each with a copy of the first tokens of `held`."""
    per = _blocks(context + 1)
    for n in range(rows):
        for index in range(_blocks(context)):
            engine.copy_block(int(held[index]), n * per + index)
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
    flags.add_argument("--truncated", type=Path, help="a file of bench.gpu.truncated_model")
    arguments = flags.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments)
    told = summary(bench, bench.run())
    print(json.dumps(told))
    return 0 if told["contract"] == "passed" and told["bits_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
