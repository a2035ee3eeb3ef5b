"""Prompts in any number, none of them twice, and when they arrive."""
