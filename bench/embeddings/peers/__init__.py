"""Others, each a process in an environment of its own, that answers lines of JSON."""
