"""A mesh on several hosts of one machine, and what its chats see when a region is lost."""
