"""Edge drafting as published: a region that verifies what it is sent, and waits when it is sent
nothing.

A replica of ours never waits for an edge, so it cannot show what waiting costs. `verifier` is the
region of the published schemes on our engine, sampler and acceptance rule: it decides nothing by
itself, takes part in a call only with what its edge has asked for, and batches whoever has asked
(pure); `__main__` is its process, which speaks a replica's own frames over gRPC. `edge` asks it in
either of two ways. Stop-and-wait (SpecEdge without its proactive branch, arXiv 2505.17052): k
drafts, then nothing until their verdict. Asynchronous chain (PicoSpec, arXiv 2603.19133): drafting
goes on while earlier drafts are verified; only a wrong draft costs the round trip.
"""
