"""The chat session, pure: what came in, and at what time, to what is to be done."""
