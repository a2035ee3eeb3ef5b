"""Servers that speak OpenAI's API, as turn engines."""
