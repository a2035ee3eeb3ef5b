"""Routing policies beside an omniscient placement: 100 replicas over five regions, virtual time.

Ours is the routers' own registry, prefix index, placement and admission. The others are written
anew from what their sources say (`bench.oracle.policies`), and get what ours gets: load reports
every 50 ms, delayed by half a round trip, the replicas' own cache events, and the count of what
they sent themselves. The omniscient placement (`bench.oracle.omniscient`) knows all of it without
delay, and the length of every reply.

Replicas are a model (`bench.oracle.replicas`): the scheduler of `bench.scale` would take an hour.
`bench.oracle.study` has the cases; some are run with the real scheduler too, to see how far the
model is off.
"""
