"""Replies begun while their prompts are typed: from Enter to the first final word.

Keystroke traces are replayed in real time against a real mesh: an edge near the typist, the region
at a distance that the relay makes. *Plain* sends the prompt at Enter and nothing before. *Ahead*
tells the edge of every key, with its user's consent, and the edge has the region begin the reply
when typing pauses. Both have the same prompts, the same keys and the same edge. One typist alone,
and eight at once; beside the eight somebody else chats who types nothing, whose waiting shows what
the others' typing costs.

The region's engine is emulated, as in `bench.wan.datacenter`: it says what the default model said
to these prompts, greedily, recorded before anything is measured; a call takes 20 ms and 0.05 ms for
each token that it reads. Scheduler, router, edge and protocols are the services' own. Every reply's
ids are compared with the recorded ones, and the run fails if one differs.

The traces are made, not recorded (`bench.typing.traces` names the sources of their distributions).
How long people look at a finished message before they press Enter was found nowhere, and the result
depends on it: it is an assumption, and ready shares are given by the length of that pause, too.
"""
