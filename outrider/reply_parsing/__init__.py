"""What a reply's text holds: reasoning, content and tool calls, read while it comes. Pure."""
