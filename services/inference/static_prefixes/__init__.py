"""Prefixes of prompts that an operator names: computed before the replica serves, and pinned."""
