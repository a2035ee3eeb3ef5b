"""What the next engine call computes, and what its answer commits (pure: no I/O, no clock).

`Scheduler` is the entry; `queues` says who may take part, `prefill_budget` and `draft_budget` how
much, `batch` lays the call out, `session` commits its answer, `admission` says who is let in.
"""
