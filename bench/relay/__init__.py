"""A wide-area link in user space: delay, jitter, reordering, loss and a rate, for UDP and TCP.

`lane` decides when what leaves (pure), `udp` and `tcp` carry it, `__main__` is the process,
`control` starts and commands it. This kernel has no netem, so packets take the way through a
process, which measures what that adds (`Traffic.lateness_ms`). A lost datagram never arrives, and
QUIC repairs that itself. TCP's own segments and handshake stay on the local machine, where none is
lost: a loss under TCP is emulated as the delay of a retransmission, which holds up all that follows
(`lane.Conditions.retransmission_ms`).
"""
