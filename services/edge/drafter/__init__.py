"""Drafts by a model: a process beside the edge that drafts replies ahead of their commits."""
