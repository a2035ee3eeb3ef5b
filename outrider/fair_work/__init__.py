"""Threads that whoever asks shares fairly: between tenants, or addresses without one; between the
clients of each; and between short work and long, which is done in slices."""
