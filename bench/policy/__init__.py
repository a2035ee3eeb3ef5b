"""What the scheduler's rules are worth, free of the machine's noise.

Three steps. The engine is timed on calls of each prepared size, eight sequences of 120 tokens
sharing the larger ones; what counts is the 15th percentile of 60 calls, so one of the quick ones.
It answers chats, once greedily and once at temperature 0.8, and documents. Then the scheduler
serves them in virtual time: an engine that knows the replies and takes just that long for every
call of a size. So drafts on and off, and any rule, are compared on the same chats with the same
durations, to the last digit.

Not in it: that calls of one size differ, and grow with the contexts. Python between the calls
counts as so much per call, per chat in it, per chat asked for drafts and per token chosen: fixed
figures, which `python -m bench.tick` and `python -m bench.sampling` gave once on a quiet machine.
"""
