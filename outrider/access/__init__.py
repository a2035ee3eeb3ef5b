"""Who may ask an edge for what: API keys and the file that holds them."""
