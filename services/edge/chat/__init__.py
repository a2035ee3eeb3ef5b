"""Chats on an edge: opening, running, outliving the client's connection, and ending."""
