"""Engines behind one seam."""
