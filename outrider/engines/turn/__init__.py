"""Engines that write whole replies, with scheduling, cache and sampling of their own."""
