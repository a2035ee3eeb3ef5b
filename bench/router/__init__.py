"""What a router costs: a decision by fleet and knowledge, a hop, a token relayed, a long prompt.

Decisions are those of the router's own placement and prefix index, on a fleet made up of numbers:
every prefix is a prompt of 60 blocks, of which 30 are shared by the prompts of its group, held by
one or two replicas. What is asked for is one of these prompts with a new question behind it. The
hop is measured over gRPC on the loopback, with the fake engine as replica.
"""
