"""The router. A fault is tested in the lowest layer that can have it; the layers above have a few
whole walks, and what only they can see.

Failover, from the pure core to real processes, and what each layer alone guards:

- `relay/`, `fleet/`, `placement/` (pure, virtual time): every decision. When a session moves and
  where to, what it takes along and what is dropped, which model may go on, who is to blame,
  budgets, deadlines, hangs, quarantine; any mixture of faults, as properties.
- `upstream/`, `integration/` (real gRPC, scripted replicas): that a fault is noticed and told to
  the core. A probe without answer, a stream that broke, another process at the same address; that
  what was lost is detached and reached again; DNS, followed files, certificates.
- `tests/e2e/` (real processes and models): that the text is the reference's, byte for byte, when a
  process of any role is killed or stopped, and that a crash leaves its evidence behind.
- `bench/faults/` (many faults under load): how long a chat pauses.

`integration/` has one walk of a reply that moves and of a replica that comes back
(`test_replicas.py`), and no second test of what follows from a refusal, a cancellation or a
session lost before its first token: mistakes there are caught beside `relay/`.
"""
