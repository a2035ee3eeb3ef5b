"""The regions' routers: which there are, their health, and which one takes the next session."""
