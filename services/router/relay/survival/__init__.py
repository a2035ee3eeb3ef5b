"""Sessions that outlive their replica: what they have, what killed it, when they may move."""
