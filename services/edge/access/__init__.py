"""What credentials are good for: tokens of issuers, and the limits of tenants."""
