"""Admission control: classes, limits of tenants, the queue, spilling over, prices. Pure."""
