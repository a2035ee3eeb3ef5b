"""What a service knows of those it depends on: where they are, how far, whether they are well."""
