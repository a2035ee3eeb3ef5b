"""What the scheduler's rules are worth, free of the machine's noise.

Three steps. The engine is asked how long calls of each prepared size take. It answers chats, once
greedily and once at temperature 0.8, and documents. Then the scheduler serves them in virtual time:
an engine that knows the replies and takes as long as was measured. So drafts on and off, and any
rule, are compared on the same chats with the same durations, to the last digit; what it leaves out
is the noise itself, and how the durations grow with the contexts. Python between the calls counts
as so much per call, per chat in it, per chat asked for drafts and per token chosen: fixed figures,
which `python -m bench.tick` and `python -m bench.sampling` gave once on a quiet machine.
"""
