"""Several processes of one service behind one address: a parent that starts them, again when they
die, and what each of them is told."""
