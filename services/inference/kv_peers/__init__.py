"""KV of sessions' beginnings from the replica that has it to the one that needs it."""
