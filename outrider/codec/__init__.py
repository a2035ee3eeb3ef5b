"""Encodings for the wire: varints, token blocks, length-prefixed frames."""
