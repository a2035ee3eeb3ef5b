"""Other processes that tokenize when the threads have enough to do."""
