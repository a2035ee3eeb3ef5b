"""What travels: varints, token blocks, length-prefixed frames."""
