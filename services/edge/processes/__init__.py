"""An edge of several processes behind one address: what they share, and what each has of limits."""
