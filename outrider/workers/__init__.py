"""Several processes of one service behind one address: a parent that starts them, restarts them
when they die, and tells each its part."""
