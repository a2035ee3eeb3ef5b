"""Drafts and their verification by equality."""
