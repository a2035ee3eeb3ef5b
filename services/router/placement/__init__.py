"""Where a session goes, and why."""
