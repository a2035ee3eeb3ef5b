"""What the scheduler decides by: how long calls may be, who goes on, who is let in."""
