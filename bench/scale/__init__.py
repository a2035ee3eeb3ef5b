"""A fleet of up to 1,000 replicas in up to 12 regions in virtual time: how close to linear it is.

Placement, prefix tree, registry, session table and, up to 32 replicas, the scheduler are the
services' own. What is simulated is what is around them: users, the network, and how long a call
of the engine takes, which is drawn from the calls that `python -m bench.scale.calls` has recorded.
"""
