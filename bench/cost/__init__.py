"""What a committed token costs on its way: processor time of client, edge, router and replica."""
