"""Decides what the next engine call computes, and what its answer commits (pure: no I/O, no clock).

`Scheduler` is the entry; `queues` decides which sessions take part, `prefill_budget` and
`draft_budget` how much of each, `batch` lays the call out, `session` commits its answer,
`admission` decides which sessions are admitted.
"""
