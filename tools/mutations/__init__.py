"""Plausible mistakes, each of which breaks a promise, and the tests that are to notice."""
