"""Limits of an edge's clients, common to all listeners."""
