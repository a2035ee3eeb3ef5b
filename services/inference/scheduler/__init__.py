"""The scheduler: decide, run, apply."""
