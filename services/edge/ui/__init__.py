"""Web pages of an edge: the chat page and the operator's view, as files without a build step."""
