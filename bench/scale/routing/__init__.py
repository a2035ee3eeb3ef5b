"""Routers in virtual time: ours, and the floors that it is compared with."""
