"""Chats: how one begins, goes on, outlives its client's connection, and ends."""
