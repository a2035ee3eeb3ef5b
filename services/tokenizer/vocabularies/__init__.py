"""The vocabularies that are served: what they keep, share and send."""

from services.tokenizer.vocabularies.served import Caches, Served, Share, Vocabularies

__all__ = ["Caches", "Served", "Share", "Vocabularies"]
