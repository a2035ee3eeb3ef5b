"""KV of sessions that lost their place in the pool, kept in the host's memory."""
