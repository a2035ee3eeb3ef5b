"""HTTP at the edge: APIs that other programs speak, onto the same chats as the native protocol."""
