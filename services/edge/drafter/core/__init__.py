"""What the drafter does, pure: sessions, their KV, and which source to believe."""
