"""Several engine instances in one replica: which one a session goes to, and what they add up to."""
