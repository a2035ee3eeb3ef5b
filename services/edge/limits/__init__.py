"""What clients may use of an edge, whichever door they come through."""
