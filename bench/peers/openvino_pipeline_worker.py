"""The process of openvino_genai's ContinuousBatchingPipeline.

Reads one JSON job per line, as `bench.harness.load.to_json` writes it, and answers each with
one line: the seconds it took and every reply's ids, the time it was asked and the times its tokens
came. Its first line says how it is set up. The pipeline keeps its own defaults except for the
number of threads, the tokens of a step (its default is 256, long prompts split among steps), the
size of its cache and prefix caching, which is on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

_CACHE_GIB = 1
_MAX_NGRAM = 3


@dataclass(slots=True)
class Reply:
    """One request's answer on its way. Times in seconds since the job began."""

    request: dict[str, Any]
    ids: list[int] = field(default_factory=list)
    asked_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    handle: Any = None

    def answer(self) -> dict[str, Any]:
        return {"ids": self.ids, "asked_s": self.asked_s, "token_s": self.token_s}


class Pipeline:
    """Replies by token ids."""

    def __init__(
        self, model: str, threads: int, lookup_tokens: int, chunk_tokens: int, *, split: bool
    ) -> None:
        """`lookup_tokens` above 0 turns prompt-lookup speculation on; `split` says whether a step
        may compute a part of a prompt."""
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = chunk_tokens
        scheduler.dynamic_split_fuse = split
        scheduler.cache_size = _CACHE_GIB
        scheduler.enable_prefix_caching = True
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": threads}
        if lookup_tokens:
            properties["prompt_lookup"] = True
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._lookup_tokens = lookup_tokens
        self._next_request = 0
        self.settings: dict[str, object] = {
            "version": genai.__version__,
            "threads": threads,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "dynamic_split_fuse": scheduler.dynamic_split_fuse,
            "cache_gib": _CACHE_GIB,
            "prefix_caching": True,
            "prompt_lookup_tokens": lookup_tokens,
            "max_ngram": _MAX_NGRAM if lookup_tokens else 0,
        }

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One job as described above."""
        replies = [Reply(request) for request in job["requests"]]
        waiting = sorted(replies, key=lambda reply: float(reply.request["due_s"]))[::-1]
        running: list[Reply] = []
        most = job["concurrency"] or len(replies)
        begin = time.perf_counter()
        background = {id(reply) for reply in replies[: job["num_background"]]}
        while waiting or running:
            self._admit(waiting, running, most, begin, job)
            if running:
                self._pipeline.step()
                running = [reply for reply in running if not _read(reply, begin)]
                is_over = time.perf_counter() - begin >= job["least_s"] and not waiting
                if is_over and all(id(reply) in background for reply in running):
                    for reply in running:
                        reply.handle.stop()
                    running = []
            else:
                time.sleep(max(0.0, begin + waiting[-1].request["due_s"] - time.perf_counter()))
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "answers": [reply.answer() for reply in replies]}

    def _admit(
        self,
        waiting: list[Reply],
        running: list[Reply],
        most: int,
        begin: float,
        job: dict[str, Any],
    ) -> None:
        while waiting and len(running) < most:
            now_s = time.perf_counter() - begin
            if waiting[-1].request["due_s"] > now_s:
                return
            reply = waiting.pop()
            reply.asked_s = now_s if job["concurrency"] else reply.request["due_s"]
            reply.handle = self._open(reply.request, job)
            running.append(reply)

    def _open(self, request: dict[str, Any], job: dict[str, Any]) -> Any:
        config = genai.GenerationConfig()
        # With prompt lookup a step may bring more tokens than are left to a request, for which the
        # pipeline (2026.4.1) ends with a failed check: so it may say that many more, and `_read`
        # stops it.
        config.max_new_tokens = request["max_tokens"]
        if self._lookup_tokens:
            config.max_new_tokens += self._lookup_tokens + 1
        config.ignore_eos = job["ignore_eos"]
        config.stop_token_ids = set() if job["ignore_eos"] else set(job["stop_ids"])
        config.apply_chat_template = False
        if job["temperature"] > 0:
            config.do_sample = True
            config.temperature = job["temperature"]
            config.rng_seed = request["seed"]
        if self._lookup_tokens:
            config.num_assistant_tokens = self._lookup_tokens
            config.max_ngram_size = _MAX_NGRAM
        self._next_request += 1
        ids = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        return self._pipeline.add_request(self._next_request, ids, config)


def _read(reply: Reply, begin: float) -> bool:
    """Take what the last step brought; whether the reply is over."""
    if reply.handle.can_read():
        reply.ids += next(iter(reply.handle.read().values())).generated_ids
        reply.token_s.append(time.perf_counter() - begin)
    most = reply.request["max_tokens"]
    if len(reply.ids) >= most:
        reply.ids = reply.ids[:most]
        reply.handle.stop()
        return True
    return bool(reply.handle.get_status() != genai.GenerationStatus.RUNNING)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="directory of the IR")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lookup-tokens", type=int, default=0)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--whole-prompts", action="store_true", help="no prompt is split")
    arguments = parser.parse_args()
    split = not arguments.whole_prompts
    shape = (arguments.threads, arguments.lookup_tokens, arguments.chunk_tokens)
    pipeline = Pipeline(arguments.model, *shape, split=split)
    print(json.dumps(pipeline.settings), flush=True)
    for line in sys.stdin:
        print(json.dumps(pipeline.run(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
