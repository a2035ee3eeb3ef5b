"""Attacks on a mesh of real processes: what strangers, clients gone wrong, and services taken over
send to it, and what each of them does to it."""
