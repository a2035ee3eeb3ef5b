"""Processes of a real mesh are killed, stopped and cut off while chats run; every reply has to
equal the reference's.

Several routers and edges, replicas in two regions, the second region behind a relay; every process
is started as `outrider serve` starts it, killed with SIGKILL and started again.
"""
