"""Tokens per second of the inference service next to other systems on the same model.

Every contender runs in a process of its own and answers the same prompts under the same limits,
with the threads and the chunk size that were found fastest for it here (`bench.contenders.tuning`;
our replicas size their chunks themselves): our replica with drafts off and on, exact and not;
openvino_genai's ContinuousBatchingPipeline on the same IR, prefix caching on, without and with its
prompt lookup; llama.cpp's server on the same GGUF and on its fastest quantisation, if it is
installed. Rounds are interleaved and ratios are those within a round: on a shared machine a short
run next to another says more than a long one. A cell has one ratio for each round and kind of
prompt. `--core` has five rounds of chats with 1, 8 and 32 sessions, greedy, and leaves the inexact
replicas out.

What is shared: all requests of a contender come from one tenant, and the requests of a cell have
one system message. No user message comes twice in a run, so a replica that drafts from earlier
replies, or a prefix cache, finds only what users' different questions have in common.

Three more questions about the service have benches of their own, and their keys are in their
results: `bench.arrivals` (`itl_p99_ratio_under_prefill`), `bench.arrivals.priorities`
(`high_ttft_ratio`), `bench.prefix` (`prefix_ttft_gain`), `bench.tick` (the parts of
`tick_overhead_ms`).
"""
