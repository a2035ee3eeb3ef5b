"""Structured output: is it valid, is it the reference's, what does it cost."""
