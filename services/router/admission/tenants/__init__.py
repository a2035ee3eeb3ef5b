"""Tenants' limits. Pure."""
