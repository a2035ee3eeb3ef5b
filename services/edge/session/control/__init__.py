"""When drafts are worth sending: what is measured, what it predicts, what is done about it."""
