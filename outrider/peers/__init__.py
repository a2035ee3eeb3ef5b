"""Peers that a service depends on: their addresses, round-trip times and health."""
