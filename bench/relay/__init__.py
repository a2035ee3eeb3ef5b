"""A wide-area link in user space: a delay, and a rate, for UDP and TCP.

`lane` decides when what leaves (pure), `udp` and `tcp` carry it, `__main__` is the process,
`control` starts and commands it. This kernel has no netem, so packets take the way through a
process, which measures what that adds (`Traffic.lateness_ms`). What is not emulated: jitter, loss,
and TCP's own handshake, which is local.
"""
