"""Whose drafts take part in a call."""
