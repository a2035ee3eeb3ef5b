"""Routers side by side on one simulated fleet: time to first token and hit rate.

Eight replicas, 150 groups of 5 prompts with a shared beginning, arriving as a Poisson process in
random order. Each replica is our inference service with its real scheduler and KV pool; only the
engine is fake, and a call of it takes as long as the real one's does (`bench.scale.calls`). In
front of it stand our router; SMG, which reaches the same replicas through an OpenAI-compatible
shell; and, as floors, round robin and least outstanding requests in the client
itself, without any router.

Dynamo's router works with Dynamo's own workers alone, so it has its CPU mocker: as many workers, as
many KV blocks of the same size and the same times of prefill and decoding, but another scheduler.
It is to be compared with its own floors first, which have the same mocker.

What is comparable is hit rates and queueing, not the routers' own speed: the services' times are
long beside it. Everybody gets token ids (SMG: one character each), so nobody tokenizes.
"""
