"""A peer in a process of its own: openvino_genai's ContinuousBatchingPipeline.

Reads one JSON job per line, `{"prompts": [[id]], "concurrency": n, "max_tokens": m,
"stop_ids": [id]}`, keeps n requests going until all are done, and answers each job with one line,
`{"seconds": s, "replies": [[id]], "ttft_ms": [t]}`. The pipeline keeps its own defaults except
the number of threads and the size of its cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

_CACHE_GIB = 1


class Pipeline:
    """Greedy replies, by token ids."""

    def __init__(self, model: str, threads: int, lookup_tokens: int) -> None:
        """`lookup_tokens` above 0 turns prompt-lookup speculation on."""
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GIB
        scheduler.enable_prefix_caching = False
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": threads}
        if lookup_tokens:
            properties["prompt_lookup"] = True
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._lookup_tokens = lookup_tokens
        self._next_request = 0

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One job as described above."""
        waiting = list(enumerate(job["prompts"]))[::-1]
        replies: list[list[int]] = [[] for _ in waiting]
        ttft_ms = [0.0] * len(waiting)
        running: dict[int, tuple[Any, float]] = {}
        begin = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < job["concurrency"]:
                which, prompt = waiting.pop()
                running[which] = (self._open(prompt, job), time.perf_counter())
            self._pipeline.step()
            for which, (handle, opened) in list(running.items()):
                if handle.can_read():
                    ttft_ms[which] = ttft_ms[which] or (time.perf_counter() - opened) * 1000
                    replies[which] += next(iter(handle.read().values())).generated_ids
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del running[which]
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "replies": replies, "ttft_ms": ttft_ms}

    def _open(self, prompt: list[int], job: dict[str, Any]) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = job["max_tokens"]
        config.stop_token_ids = set(job["stop_ids"])
        config.apply_chat_template = False
        if self._lookup_tokens:
            config.num_assistant_tokens = self._lookup_tokens
            config.max_ngram_size = 3
        self._next_request += 1
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(self._next_request, ids, config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="directory of the IR")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lookup-tokens", type=int, default=0)
    arguments = parser.parse_args()
    pipeline = Pipeline(arguments.model, arguments.threads, arguments.lookup_tokens)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(pipeline.run(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
