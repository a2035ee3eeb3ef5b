"""Neutral judges of the APIs that an edge serves: programs of others, run against a mesh here."""
