"""Permissions behind credentials: tokens of issuers, and the limits of tenants."""
