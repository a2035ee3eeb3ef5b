"""Who guesses: copies in this process, and a drafter beside it."""
