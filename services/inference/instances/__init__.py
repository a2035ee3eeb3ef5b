"""Several engine instances in one replica: which of them a session goes to."""
