"""Transfer of KV from the replica that has it to the one that needs it."""
