"""Drafts by a model: a process beside the edge that guesses what each reply says next."""
