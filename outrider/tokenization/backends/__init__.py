"""Backends that turn texts into ids: the reference, and faster ones that must equal it."""
