"""How a client stays connected: life signs, other ways, other connections, session tickets."""
