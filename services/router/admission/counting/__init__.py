"""What follows from how many tokens a session has: its class, its price. Pure."""
