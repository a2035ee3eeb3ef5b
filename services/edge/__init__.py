"""The edge: takes clients, tokenizes, drafts, shows and reconciles."""
