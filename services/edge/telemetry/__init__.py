"""Metrics and logs of an edge."""
