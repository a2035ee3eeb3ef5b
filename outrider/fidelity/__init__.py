"""Whether an engine says what the model says: its rows against the model file's own weights."""
