"""How much memory the KV pool gets."""
