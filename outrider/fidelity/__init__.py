"""How close an engine's logits are to those of the model file's own weights."""
