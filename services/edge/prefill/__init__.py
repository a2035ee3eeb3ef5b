"""Prompts that are computed while their users still type them."""
