"""Minutes of random chats with a real replica in a process of its own: every reply is the engine's
own, every error the one asked for, nothing is left over, and memory does not grow with the sessions
that are over.
"""
