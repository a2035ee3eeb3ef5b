"""A fleet of up to 1,000 replicas in up to 12 regions in virtual time: how close to linear it is.

Registry, prefix index, placement and (where it says so) admission of the routers, scheduler and KV
pool of every replica are the services' own. What is simulated is what is around them: users, the
network, what a router does about a lost session, and how long a call of the engine takes, which is
drawn from the calls that `python -m bench.scale.calls` has recorded.
"""
