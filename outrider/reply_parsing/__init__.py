"""Parses a reply's text while it arrives: reasoning, content and tool calls. Pure."""
