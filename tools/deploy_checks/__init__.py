"""What is checked of deploy/: manifests, policies, configurations, images."""
