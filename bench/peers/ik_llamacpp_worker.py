"""ik_llama.cpp's process, run by the Python of its own environment: it reads one JSON job per line,
as `bench.harness.load.to_json` writes it, and answers each with one line.

The package is a binding without a server: it holds one sequence, forgets it before the next one,
and has kernels for AVX2 alone. Its own choice of the likeliest token walks through the vocabulary
in Python; that is numpy's here, so that the engine is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

VERSION = "ik-llama-cpp-python 0.1.5"
_CONTEXT_TOKENS = 2048
_BATCH_TOKENS = 16
"""Of a prompt, computed at once. On a CPU without VNNI, version 0.1.5 computes something else from
32 tokens on: of 35 the likeliest next one was the end of the reply, which it is not in parts of 31
or fewer, all of which agree."""


class Engine:
    """One sequence after the other, greedy."""

    def __init__(self, model: str, threads: int) -> None:
        package = import_module("ik_llama_cpp")  # of this environment alone, as numpy is
        self._api, self._internals = package._ctypes_api, package._internals
        self._numpy = import_module("numpy")
        # It says which CPUs its flash attention fails on, and leaves it out there.
        llama = package.IkLlama(model, n_ctx=_CONTEXT_TOKENS, n_threads=threads, verbose=False)
        self._llama, self._context, self._model = llama, llama._context, llama._model
        self.settings = {
            "version": VERSION,
            "threads": threads,
            "model": Path(model).name,
            "batch_tokens": _BATCH_TOKENS,
        }

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One job, of one request at a time."""
        begin = time.perf_counter()
        answers = [self._answer(request, job, begin) for request in job["requests"]]
        return {"seconds": time.perf_counter() - begin, "answers": answers}

    def _answer(self, request: dict[str, Any], job: dict[str, Any], begin: float) -> dict[str, Any]:
        asked_s = time.perf_counter() - begin
        ids: list[int] = []
        token_s: list[float] = []
        self._context.kv_cache_clear()
        pending = list(request["prompt"])
        past = 0
        while len(ids) < request["max_tokens"]:
            self._decode(pending, past)
            past += len(pending)
            logits = self._context.get_logits(-1)
            row = self._numpy.ctypeslib.as_array(logits, (self._model.n_vocab,))
            pending = [int(row.argmax())]
            ids += pending
            token_s.append(time.perf_counter() - begin)
            if pending[0] in job["stop_ids"] and not job["ignore_eos"]:
                break
        return {"ids": ids, "asked_s": asked_s, "token_s": token_s}

    def _decode(self, tokens: list[int], past: int) -> None:
        """Raises RuntimeError if it does not compute."""
        for begin in range(0, len(tokens), _BATCH_TOKENS):
            part = tokens[begin : begin + _BATCH_TOKENS]
            batch = self._internals.make_batch_range(part, pos_start=past + begin)
            status = self._context.decode(batch)
            self._api.llama_batch_free(batch)
            if status:
                raise RuntimeError(f"llama_decode answered {status}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.threads)
    print(json.dumps(engine.settings), flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.run(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
