"""The vocabulary of a session: what edge, router, replica and client tell each other of one reply.

`types`: priority, end, token counts, times. `region`: drafts up to a replica and commits down from
it, `region_wire` in frames. `client`: what the client is told, `client_wire` in frames. Nowhere
else is a frame of a commit or a draft written or read.
"""
