"""What turns a text into ids: the reference, and faster ones that must equal it."""
