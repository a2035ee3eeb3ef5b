"""Models of every kind that is claimed, through replicas as `outrider up` starts them.

For each: seconds until a replica is ready, cold (nothing converted) and warm; what its process
holds; tokens per second of one session with models for small calls as they are chosen, with none
and with all; and whether its replies equal the reference's.
"""
