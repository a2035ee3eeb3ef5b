"""Routers side by side on one simulated fleet: time to first token and hit rate.

Eight replicas, 150 groups of 5 prompts with a shared beginning, arriving as a Poisson process in
random order. Each replica is our inference service with its real scheduler and KV pool; only the
engine is fake, and a call of it takes as long as the real one's does (`bench.scale.calls`). In
front of it stand our router; SMG, which reaches the same replicas through an OpenAI-compatible
shell; and, as floors, round robin and least outstanding requests in the client
itself, without any router.

What is comparable is hit rates and queueing, not the routers' own speed: the services' times are
long beside it. Everybody gets token ids (SMG: one character each), so nobody tokenizes.
"""
