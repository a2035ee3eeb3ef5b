"""Random chats of several tenants and priorities, drafted for, cancelled and cut off, for as long
as one likes; afterwards every text is the reference's and nothing is left.

By default against a real replica with the real model for `--minutes`; with `--virtual`, an hour of
the fake engine in virtual time, with every invariant checked after every step; with `--streams`, so
many streams at once through a router to a replica with a fake engine: is memory flat?
"""
