"""The models that one edge serves."""
