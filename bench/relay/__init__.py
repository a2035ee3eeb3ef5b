"""A wide-area link in user space: delay, jitter and loss for UDP, delay and jitter for TCP.

`lane` decides when what leaves (pure), `udp` and `tcp` carry it, `__main__` is the process,
`control` starts and commands it. This kernel has no netem, so packets take the way through a
process, which measures what that adds (`Traffic.lateness_ms`). What cannot be emulated here: loss
under TCP, whose segments the relay never sees, and TCP's own handshake, which is local.
"""
