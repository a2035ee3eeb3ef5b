"""Weights by digest: where a model's shards are had, and what fetches, pushes and serves them."""
