"""Traces, metrics, logs and the admin port of every service."""
