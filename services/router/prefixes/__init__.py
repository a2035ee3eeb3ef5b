"""Which replicas hold the KV of which prompts' beginnings (pure)."""
