"""Which replica a session goes to, and why. Pure."""
