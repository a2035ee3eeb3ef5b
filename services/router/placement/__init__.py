"""Chooses the replica of a session, with the reason. Pure."""
