"""The regions' routers: their addresses, their health, and the choice of one for the next
session."""
