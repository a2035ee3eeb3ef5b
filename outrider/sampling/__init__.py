"""Choosing tokens: a pure function of logits, history, position and seed."""
