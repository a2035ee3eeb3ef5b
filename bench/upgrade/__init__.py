"""Two versions in one mesh: it is upgraded and rolled back process by process while chats run."""
