"""How the model store keeps bytes: locks, digests, partial fetches, index, built directories."""
