"""Who may request what from an edge: API keys and the file that holds them."""
