"""Chats that outlive their client's connection: what is kept, for whom, and for how long."""
