"""What mutual TLS costs between two services."""
