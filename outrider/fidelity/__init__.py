"""How close an engine's logits are to logits computed from the model file's own weights."""
