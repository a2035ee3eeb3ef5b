"""How fast texts become ids, what the cache saves, and what the event loop feels of it."""
