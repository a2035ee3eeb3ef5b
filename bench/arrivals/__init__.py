"""Latency when requests arrive by themselves, and who disturbs whom.

Two parts. Loads: chats arrive as a Poisson process at 50, 80 and 95 % of each system's own
measured capacity, and at one rate for all, 80 % of the OpenVINO pipeline's capacity; all systems
get the same prompts and the same arrivals, stretched to their rate. Prefill: the latency of
running chats while prompts of about 1,500 tokens keep arriving, over the same without them.

TTFT counts from the arrival, queueing included. ITL is the time between two arrivals of text at
the reader: tokens that come together count as one, so drafts gain nothing by their zero gaps. No
user message comes twice. Each system runs in its own process, with the threads and the chunk size
that were found best for latency here (`bench.tuning`); our own sizes its chunks itself. Rounds are
interleaved.
"""
