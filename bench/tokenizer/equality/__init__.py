"""Equality with the reference on whole books in many languages."""
