"""What a draft costs beside its target."""
