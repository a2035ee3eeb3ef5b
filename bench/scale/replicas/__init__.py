"""Replicas in virtual time: the real scheduler, and a cheaper model that was fitted to it."""
