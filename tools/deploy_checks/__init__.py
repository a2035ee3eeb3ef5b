"""Checks of deploy/: manifests, policies, configurations, images."""
