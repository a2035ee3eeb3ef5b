"""Whom `outrider tokenize --service` asks, in each of its worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from outrider.tls.config import TlsConfig

if TYPE_CHECKING:
    from outrider.bulk.encoding import EncodeElsewhere
    from outrider.models.vocabulary import Vocabulary

_TIMEOUT_S: Final = 300.0
"""A row has up to some 16 MB of text."""


@dataclass(frozen=True, slots=True)
class TokenizerServices:
    """Pickles; what asks is made in the process that uses it, for gRPC does not survive a fork."""

    addresses: tuple[str, ...]
    """As in LongTextsConfig.tokenizers."""
    model: str
    """Whose vocabulary it is; empty: the services' first one, if it has the vocabulary's digest."""
    tls: TlsConfig

    def __call__(self, vocabulary: Vocabulary) -> EncodeElsewhere:
        """Who is asked for long texts of this vocabulary. Raises ConfigError."""
        from outrider.bulk.encoding import LONG_CHARS
        from outrider.codec.shipped import shipped_table
        from outrider.codec.tokens import TokenCoder
        from outrider.tls import Role, Tls
        from outrider.tokenizer_client import (
            BlockingTokenizerClient,
            LongTextsConfig,
            TextVocabulary,
        )

        config = LongTextsConfig(
            tokenizers=self.addresses, min_chars=LONG_CHARS, timeout_s=_TIMEOUT_S
        )
        digest, ranks = vocabulary.digest, shipped_table(vocabulary.tokens_digest)
        coder = TokenCoder(digest, vocabulary.size, ranks)
        client = BlockingTokenizerClient(
            config,
            Tls.open(self.tls, Role.OPERATOR),
            TextVocabulary(self.model, digest, coder),
        )
        return client.encode
