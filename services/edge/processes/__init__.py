"""An edge of several processes behind one address: shared resources, and each one's part of
limits."""
