"""KV in transit: frames of real KV, and prompts whose KV is in a Redis or on another replica."""

from __future__ import annotations

import asyncio

from bench.harness import median, parser, start
from bench.kv import first_token, frames, restart
from outrider.codec.kv import Payload
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary


def main() -> int:
    flags = parser("kv", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of the replica's engine")
    arguments = flags.parse_args()
    run = start("kv", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    num_prefixes = 2 if run.quick else 20
    bf16 = frames.measure(run, vocabulary, "bf16", num_prefixes)
    f32 = frames.measure(run, vocabulary, "f32", num_prefixes)
    run.figures["exact_vs_bf16"] = round(median(bf16[Payload.EXACT].ratios), 3)
    run.figures["q8_vs_f32"] = round(median(f32[Payload.Q8].ratios), 3)
    run.figures["q8_top1"] = round(f32[Payload.Q8].num_same / f32[Payload.Q8].num_scored, 4)
    run.figures["decode_mb_s"] = round(median(bf16[Payload.EXACT].decode_mb_s))
    run.figures["decode_over_compute"] = round(median(bf16[Payload.EXACT].decode_share), 4)
    run.setting("replica", threads=arguments.threads)
    rtts_ms = first_token.RTTS_MS[:1] if run.quick else first_token.RTTS_MS
    count = 1 if run.quick else 12
    asked = asyncio.run(first_token.measure(vocabulary, count, arguments.threads, rtts_ms))
    first_token.report(run, asked)
    starts = asyncio.run(restart.measure(vocabulary, 1 if run.quick else 5, arguments.threads))
    restart.report(run, starts)
    run.finish()
    num_frames = bf16[Payload.EXACT].num_equal + f32[Payload.EXACT].num_equal
    return int(num_frames != 2 * num_prefixes or not first_token.is_exact(asked))


if __name__ == "__main__":
    raise SystemExit(main())
