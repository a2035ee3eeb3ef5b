"""Outrider, a speculative token mesh: what several services share and what users import."""

__version__ = "0.1.0"
