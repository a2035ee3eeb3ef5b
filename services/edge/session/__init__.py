"""The chat session, pure: it turns inputs and their times into actions."""
