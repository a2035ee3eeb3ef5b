"""The vocabulary of a session: messages of edge, router, replica and client about one reply.

`types`: priority, end, token counts, times. `region`: drafts up to a replica and commits down from
it; `region_wire` writes them as frames. `client`: events for the client; `client_wire` writes them
as frames. Commits and drafts are read and written in no other place. `runs`: which of two runs of
one request is the later one.
"""
